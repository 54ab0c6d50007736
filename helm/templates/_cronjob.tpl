{{- /* The CronJob of a sweep or a check. Call with (dict "root" $ "group" "sweeps" "component" "retention-sweep" "container" its name "run" values of its schedule "command" list "options" list). */ -}}
{{- define "sediment.cronJob" -}}
{{- $own := index .root.Values .group -}}
{{- $isDriver := ne $own.engine "local" -}}
{{- $values := mergeOverwrite (deepCopy .root.Values.defaults) (deepCopy $own) -}}
{{- /* Checks in their process write nothing. */ -}}
{{- if and (eq .group "checks") (not $isDriver) -}}{{- $values = omit $values "scratchSizeLimit" -}}{{- end -}}
{{- $ctx := merge (dict "values" $values "image" (ternary .root.Values.sparkImage .root.Values.image $isDriver) "isDriver" $isDriver) . -}}
{{- $account := merge (dict "component" .group) $ctx -}}
{{- $port := eq $own.credentials "token" | ternary "tokens" "grpc" -}}
{{- $hasExecutors := include "sediment.hasExecutors" . -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "sediment.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "sediment.labels" . | nindent 4 }}
spec:
  schedule: {{ .run.schedule | quote }}
  timeZone: {{ .run.timeZone }}
  suspend: {{ .run.suspend }}
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: {{ int .run.startingDeadlineSeconds }}
  successfulJobsHistoryLimit: {{ int .run.successfulJobsHistoryLimit }}
  failedJobsHistoryLimit: {{ int .run.failedJobsHistoryLimit }}
  jobTemplate:
    spec:
      # The next run of a sweep continues where this one stopped; what a check found, it would find again.
      backoffLimit: 0
      activeDeadlineSeconds: {{ int .run.activeDeadlineSeconds }}
      {{- if $hasExecutors }}
      # Gives the pod a host name that is the run's own, by which executors find their driver.
      completionMode: Indexed
      completions: 1
      parallelism: 1
      {{- end }}
      template:
        metadata:
          labels:
            {{- include "sediment.podLabels" $ctx | nindent 12 }}
          {{- with $values.podAnnotations }}
          annotations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
        spec:
          {{- include "sediment.podSpec" $account | nindent 10 }}
          {{- if $hasExecutors }}
          subdomain: {{ include "sediment.name" . }}
          {{- end }}
          restartPolicy: Never
          containers:
            - name: {{ .container }}
              {{- include "sediment.containerBasics" $account | nindent 14 }}
              command: {{ toJson .command }}
              args:
                - --rsm={{ include "sediment.address" (dict "root" .root "service" "rsm" "port" $port) }}
                - --rlmm={{ include "sediment.address" (dict "root" .root "service" "rlmm" "port" $port) }}
                {{- with include "sediment.sparkOptions" . | trim }}
                {{- . | nindent 16 }}
                {{- end }}
                {{- toYaml .options | nindent 16 }}
              {{- if $hasExecutors }}
              ports:
                - name: driver
                  containerPort: 7078
                - name: blocks
                  containerPort: 7079
              {{- end }}
              {{- if $values.scratchSizeLimit }}
              # Spark's scratch files; the rest of the file system is read-only.
              workingDir: /tmp
              {{- end }}
              env:
                {{- if $values.scratchSizeLimit }}
                - name: TMPDIR
                  value: /tmp
                - name: HOME
                  value: /tmp
                {{- end }}
                {{- include "sediment.clientEnv" $account | trim | nindent 16 }}
                {{- with and $isDriver (include "sediment.driverEnv" . | trim) }}
                {{- . | nindent 16 }}
                {{- end }}
                {{- with $values.extraEnv }}
                {{- toYaml . | nindent 16 }}
                {{- end }}
{{- end -}}
