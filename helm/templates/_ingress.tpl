{{- /* Who may call a pod. Call with (dict "root" $ "component" "rsm"). */ -}}

{{- /* The drivers and executors of a group, as a peer. Call with (dict "root" $ "group" "sweeps"). */ -}}
{{- define "sediment.sparkPeer" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
    app.kubernetes.io/instance: {{ .root.Release.Name }}
  matchExpressions:
    - key: app.kubernetes.io/component
      operator: In
      values: {{ append (values (include "sediment.drivers" . | fromJson)) (include "sediment.executor" .) | sortAlpha | toJson }}
{{- end -}}

{{- /* Empty: nothing but the pod's own node, from which probes and `kubectl port-forward` come. */ -}}
{{- define "sediment.ingress" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- $spark := dict "root" .root "group" (include "sediment.group" .) -}}
{{- if has .component (list "rsm" "rlmm" "rlm") }}
- ports:
    - port: grpc
    {{- if hasKey (include "sediment.ports" . | fromJson) "tokens" }}
    - port: tokens
    {{- end }}
  from:
    - podSelector:
        matchLabels:
          app.kubernetes.io/instance: {{ .root.Release.Name }}
          app.kubernetes.io/part-of: sediment
    {{- with $policy.grpcFrom }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- if hasKey (include "sediment.ports" . | fromJson) "kafka" }}
{{- with .root.Values.rlm.listener.from }}
- ports:
    - port: kafka
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}
{{- with $policy.metricsFrom }}
- ports:
    - port: metrics
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- else if eq .component "trial" }}
- ports:
    - port: postgres
    - port: store
  from:
    - podSelector:
        matchLabels:
          app.kubernetes.io/instance: {{ .root.Release.Name }}
          app.kubernetes.io/part-of: sediment
{{- else if eq .component "console" }}
{{- with $policy.consoleFrom }}
- ports:
    - port: https
  from:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- else if and $spark.group (include "sediment.hasExecutors" $spark) }}
- ports:
    {{- if ne .component (include "sediment.executor" $spark) }}
    - port: 7078
    {{- end }}
    - port: 7079
  from:
    - {{- include "sediment.sparkPeer" $spark | nindent 6 }}
{{- end }}
{{- end -}}
