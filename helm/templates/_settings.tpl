{{- /* A service's settings, as a map: sediment.settings.NAME of the root. Secrets: _secrets.tpl. */ -}}

{{- define "sediment.settings.rsm" -}}
{{- with .Values.objectStore }}
RSM_BACKEND: s3
RSM_ENDPOINT: {{ .endpoint | quote }}
RSM_REGION: {{ .region | quote }}
RSM_BUCKET: {{ .bucket | quote }}
RSM_PREFIX: {{ .prefix | quote }}
RSM_DEPLOYMENT_ID: {{ .deploymentId | default (printf "%s.%s" $.Release.Namespace $.Release.Name) | quote }}
RSM_SECURE: {{ .secure | quote }}
RSM_CREDENTIALS: {{ .credentials }}
{{- if has .credentials (list "files" "assume-role") }}
RSM_ACCESS_KEY_FILE: /etc/sediment/object-store/access-key
RSM_SECRET_KEY_FILE: /etc/sediment/object-store/secret-key
{{- end }}
{{- end }}
{{- end -}}

{{- define "sediment.settings.rlmm" -}}
{{- end -}}

{{- define "sediment.settings.rlm" -}}
RLM_RSM_ADDRESS: {{ include "sediment.address" (dict "root" . "service" "rsm" "port" "grpc") }}
RLM_RLMM_ADDRESS: {{ include "sediment.address" (dict "root" . "service" "rlmm" "port" "grpc") }}
RLM_LOG_DIRS: {{ join "," .Values.rlm.logDirs | quote }}
{{- with .Values.rlm.listener }}
{{- if .enabled }}
{{- $service := "" }}
{{- if $.Values.rlm.enabled }}
{{- $service = include "sediment.address" (dict "root" $ "service" "rlm" "port" "kafka") }}
{{- end }}
RLM_CONSUMER_ADVERTISED_ADDRESS: {{ required "rlm.listener.advertisedAddress is missing: HOST:PORT at which consumers reach the sidecar" (default $service .advertisedAddress) | quote }}
{{- end }}
{{- end }}
{{- with int64 .Values.rlm.indexCache.totalSizeBytes }}
RLM_REMOTE_LOG_INDEX_FILE_CACHE_DIR: /var/cache/sediment
RLM_REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES: {{ . | toString | quote }}
{{- end }}
{{- end -}}

{{- /* All of them, for a ConfigMap. Call with (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.settings" -}}
{{- $prefix := upper .component -}}
{{- $names := dict "grpc" "LISTEN" "health" "HEALTH" "metrics" "METRICS" "tokens" "TOKEN_LISTEN" "kafka" "CONSUMER_LISTEN" }}
{{- range $what, $port := include "sediment.ports" . | fromJson }}
{{ $prefix }}_{{ index $names $what }}_ADDRESS: {{ printf "%s:%d" $.root.Values.listenHost (int $port) | quote }}
{{- end }}
{{ include "sediment.tlsSettings" . | trim }}
{{ include (printf "sediment.settings.%s" .component) .root | trim }}
{{- range $name, $value := (index .root.Values .component).settings }}
{{ $name }}: {{ include "sediment.text" $value | quote }}
{{- end }}
{{- end -}}
