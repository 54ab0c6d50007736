{{- define "sediment.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The services of this release, as JSON. */ -}}
{{- define "sediment.services" -}}
{{- $enabled := list -}}
{{- range $service := list "rsm" "rlmm" "rlm" -}}
{{- if index $.Values $service "enabled" -}}{{- $enabled = append $enabled $service -}}{{- end -}}
{{- end -}}
{{- toJson $enabled -}}
{{- end -}}

{{- /* "true" if the release has this job of RLMM's database, else empty. Call with (dict "root" $ "job" "migration"). */ -}}
{{- define "sediment.hasDatabaseJob" -}}
{{- if and .root.Values.rlmm.enabled (index .root.Values .job "enabled") -}}true{{- end -}}
{{- end -}}

{{- /* The ports of a service, fixed: a pod is a host of its own. Call with (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.ports" -}}
{{- $ports := dict "grpc" 50051 "health" 50052 "metrics" 50053 -}}
{{- if eq .component "console" -}}
{{- $ports = dict "https" 8443 -}}
{{- end -}}
{{- if and .root.Values.tls.tokens.enabled (has .component (list "rsm" "rlmm")) -}}
{{- $ports = set $ports "tokens" 50054 -}}
{{- end -}}
{{- if and (eq .component "rlm") .root.Values.rlm.listener.enabled -}}
{{- $ports = set $ports "kafka" .root.Values.rlm.listener.port -}}
{{- end -}}
{{- toJson $ports -}}
{{- end -}}

{{- /* Of a service of this release, or elsewhere. Call with (dict "root" $ "service" "rsm" "port" "grpc"). */ -}}
{{- define "sediment.address" -}}
{{- $values := index .root.Values .service -}}
{{- if $values.enabled -}}
{{- $ports := include "sediment.ports" (dict "root" .root "component" .service) | fromJson -}}
{{- printf "%s-%s.%s.svc:%d" (include "sediment.fullname" .root) .service .root.Release.Namespace (index $ports .port | int) -}}
{{- else -}}
{{- eq .port "tokens" | ternary $values.tokenAddress $values.address -}}
{{- end -}}
{{- end -}}

{{- /* All below: call with (dict "root" $ "component" "rsm" ...). */ -}}
{{- define "sediment.name" -}}
{{- printf "%s-%s" (include "sediment.fullname" .root) .component -}}
{{- end -}}

{{- define "sediment.selectorLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* Not the chart's version: no pod restarts for that. */ -}}
{{- define "sediment.podLabels" -}}
{{ include "sediment.selectorLabels" . }}
app.kubernetes.io/part-of: sediment
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- with .values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sediment.labels" -}}
{{ include "sediment.selectorLabels" . }}
app.kubernetes.io/part-of: sediment
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* With "values": those of the component. */ -}}
{{- define "sediment.serviceAccountName" -}}
{{- $own := include "sediment.name" . -}}
{{- .values.serviceAccount.name | default (ternary $own "default" .values.serviceAccount.create) -}}
{{- end -}}

{{- /* Call with (dict "root" $ "image" .Values.image). */ -}}
{{- define "sediment.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* A whole number as it is written: Helm has read it as a floating one. */ -}}
{{- define "sediment.text" -}}
{{- if kindIs "float64" . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}
