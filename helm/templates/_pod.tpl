{{- /* What all pods have in common. Call with (dict "root" $ "component" "rsm" "values" of it). */ -}}

{{- define "sediment.podSpec" -}}
serviceAccountName: {{ include "sediment.serviceAccountName" . }}
{{- /* Spark's driver starts executors by the Kubernetes API. */}}
automountServiceAccountToken: {{ if .isDriver }}{{ include "sediment.hasExecutors" . | eq "true" }}{{ else }}false{{ end }}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "sediment.podSecurityContext" . | nindent 2 }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "sediment.volumes" . | fromYamlArray }}
volumes:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* RLM's pod mounts the brokers' volumes, whose files the kubelet would give to an fsGroup. */ -}}
{{- define "sediment.podSecurityContext" -}}
{{- $pod := .values.podSecurityContext | default dict -}}
{{- if and (ne .component "rlm") (hasKey $pod "runAsGroup") (not (hasKey $pod "fsGroup")) -}}
{{- $pod = merge (dict "fsGroup" $pod.runAsGroup) $pod -}}
{{- end -}}
{{- toYaml $pod -}}
{{- end -}}

{{- define "sediment.volumes" -}}
{{- range .values.logVolumes }}
- name: {{ .name }}
  {{- toYaml .source | nindent 2 }}
{{- end }}
{{- with .values.scratchSizeLimit }}
- name: scratch
  emptyDir:
    sizeLimit: {{ . }}
{{- end }}
{{- include "sediment.indexCacheVolume" . }}
{{- include "sediment.secretVolumes" . }}
{{- include "sediment.tlsVolumes" . }}
{{- include "sediment.driverVolumes" . }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* RLM keeps to its limit but for the last writes; above its sizeLimit a pod is evicted. Call with .Values.rlm.indexCache. */ -}}
{{- define "sediment.indexCacheVolumeBytes" -}}
{{- with int64 .totalSizeBytes -}}{{- add . (div . 4) 16777216 -}}{{- else -}}0{{- end -}}
{{- end -}}

{{- define "sediment.indexCacheVolume" -}}
{{- with .values.indexCache }}
{{- with int64 .totalSizeBytes }}
- name: index-cache
  {{- with $.values.indexCache.source }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ include "sediment.indexCacheVolumeBytes" $.values.indexCache | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sediment.volumeMounts" -}}
{{- range .values.logVolumes }}
- name: {{ .name }}
  mountPath: {{ .mountPath }}
  readOnly: true
{{- end }}
{{- if .values.scratchSizeLimit }}
- name: scratch
  mountPath: /tmp
{{- end }}
{{- if int64 (dig "indexCache" "totalSizeBytes" 0 .values) }}
- name: index-cache
  mountPath: /var/cache/sediment
{{- end }}
{{- include "sediment.secretVolumeMounts" . }}
{{- include "sediment.tlsVolumeMounts" . }}
{{- include "sediment.driverVolumeMounts" . }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sediment.spread" -}}
{{- with .values.topologySpreadKeys }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sediment.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* With "image", one of .Values.image and .Values.sparkImage. */ -}}
{{- define "sediment.containerBasics" -}}
image: {{ include "sediment.image" . | quote }}
imagePullPolicy: {{ .image.pullPolicy }}
securityContext:
  {{- toYaml .values.securityContext | nindent 2 }}
resources:
  {{- toYaml .values.resources | nindent 2 }}
{{- with include "sediment.volumeMounts" . | fromYamlArray }}
volumeMounts:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Variables of a service's process; extraEnv may set one of them to something else. */ -}}
{{- define "sediment.processVariables" -}}
{{- $variables := dict "MALLOC_ARENA_MAX" "2" "MALLOC_MMAP_THRESHOLD_" "2097152" "MALLOC_TRIM_THRESHOLD_" "33554432" "GRPC_VERBOSITY" "ERROR" -}}
{{- range .values.extraEnv -}}
{{- $variables = omit $variables .name -}}
{{- end -}}
{{- toYaml $variables -}}
{{- end -}}

{{- /* The container of a service, in a pod of ours or of a broker; with "envFrom": list. */ -}}
{{- define "sediment.serviceContainer" -}}
{{- $ports := include "sediment.ports" . | fromJson -}}
name: {{ .containerName }}
{{ include "sediment.containerBasics" (merge (dict "image" .root.Values.image) .) }}
command: ["python", "-m", "services.{{ .component }}"]
{{- with .envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $secrets := include (printf "sediment.secrets.%s" .component) .root | trim }}
env:
  # glibc returns large blocks when they are freed, and keeps few others. gRPC logs no line for each
  # failed handshake.
  {{- range $name, $value := include "sediment.processVariables" . | fromYaml }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
  {{- range $name, $value := .env }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
  {{- with $secrets }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with .values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- range $name, $port := $ports }}
  - name: {{ $.portPrefix }}{{ $name }}
    containerPort: {{ int $port }}
    {{- if and (eq $.component "rlm") (eq $name "grpc") $.hostPort }}
    hostPort: {{ int $.hostPort }}
    {{- end }}
  {{- end }}
startupProbe:
  grpc:
    port: {{ int $ports.health }}
    service: liveness
  {{- toYaml .values.startupProbe | nindent 2 }}
livenessProbe:
  grpc:
    port: {{ int $ports.health }}
    service: liveness
  {{- toYaml .values.livenessProbe | nindent 2 }}
readinessProbe:
  grpc:
    port: {{ int $ports.health }}
    service: ""
  {{- toYaml .values.readinessProbe | nindent 2 }}
{{- with int .values.preStopSeconds }}
{{- /* Kubernetes before 1.33 refuses a sleep of 0. */}}
lifecycle:
  preStop:
    sleep:
      seconds: {{ . }}
{{- end }}
{{- end -}}
