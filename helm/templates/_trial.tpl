{{- /* `trial: true`: the release brings PostgreSQL and an S3 store of its own, and nothing else has to be given. */ -}}

{{- /* Sets the values that a trial decides. Every template that renders objects includes it first: Helm gives all the same values. */ -}}
{{- define "sediment.trial" -}}
{{- if .Values.trial -}}
{{- $own := include "sediment.trialValues" . | fromYaml -}}
{{- range $path := list "database.existingSecret" "database.ownerSecret" "objectStore.endpoint" "objectStore.bucket" "objectStore.existingSecret" -}}
{{- $keys := splitList "." $path -}}
{{- $given := index $.Values (first $keys) (last $keys) -}}
{{- if not (has $given (list "" (index $own (first $keys) (last $keys)))) -}}
{{- fail (printf "trial is true and %s is %s: a trial has a database and an object store of its own; remove one of the two." $path $given) -}}
{{- end -}}
{{- end -}}
{{- range $service := list "rsm" "rlmm" -}}
{{- if not (index $.Values $service "enabled") -}}
{{- fail (printf "trial is true and %s.enabled is false: a trial has both services; remove one of the two." $service) -}}
{{- end -}}
{{- end -}}
{{- $_ := mergeOverwrite .Values $own -}}
{{- end -}}
{{- end -}}

{{- define "sediment.trialName" -}}
{{- include "sediment.name" (dict "root" . "component" "trial") -}}
{{- end -}}

{{- define "sediment.trialValues" -}}
image:
  repository: {{ .Values.image.repository | default "sediment-trial" }}
database:
  existingSecret: {{ include "sediment.trialName" . }}
  urlKey: url
  passwordKey: password
objectStore:
  endpoint: {{ printf "%s.%s.svc:9000" (include "sediment.trialName" .) .Release.Namespace }}
  region: us-east-1
  bucket: sediment
  secure: false
  credentials: files
  existingSecret: {{ include "sediment.trialName" . }}
  accessKeyKey: access-key
  secretKeyKey: secret-key
# The trial's pod brings the schema to its release when it starts.
migration:
  enabled: false
tls:
  plaintext: {{ not .Values.tls.enabled }}
{{- if not .Values.sparkImage.repository }}
sweeps:
  engine: local
{{- end }}
{{- end -}}
