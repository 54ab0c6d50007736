{{- /* What pods see of the secrets: files, which change with the secret, where the program reads files. */ -}}

{{- /* As a container's env: sediment.secrets.NAME of the root. */ -}}
{{- define "sediment.secrets.rsm" -}}
{{- end -}}

{{- define "sediment.secrets.rlmm" -}}
{{ include "sediment.databaseEnv" (dict "database" .Values.database "secret" .Values.database.existingSecret) }}
{{- end -}}

{{- /* Of the migration and the maintenance, which need the owner of the tables. */ -}}
{{- define "sediment.secrets.owner" -}}
{{ include "sediment.databaseEnv" (dict "database" .Values.database "secret" (include "sediment.ownerSecret" .)) }}
{{- end -}}

{{- define "sediment.ownerSecret" -}}
{{- .Values.database.ownerSecret | default .Values.database.existingSecret -}}
{{- end -}}

{{- define "sediment.databaseEnv" -}}
- name: RLMM_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .database.urlKey }}
{{- if .database.passwordKey }}
- name: RLMM_DATABASE_PASSWORD_FILE
  value: /etc/sediment/database/password
{{- end }}
{{- end -}}

{{- define "sediment.secrets.rlm" -}}
{{- end -}}

{{- /* As volumes: a list of maps with a name, a mountPath and a secret, of (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.secretFiles" -}}
{{- $files := list -}}
{{- with .root.Values.objectStore -}}
{{- if and (eq $.component "rsm") (has .credentials (list "files" "assume-role")) -}}
{{- $keys := list (dict "key" .accessKeyKey "path" "access-key") (dict "key" .secretKeyKey "path" "secret-key") -}}
{{- $files = append $files (dict "name" "object-store-keys" "mountPath" "/etc/sediment/object-store" "secretName" .existingSecret "items" $keys) -}}
{{- end -}}
{{- end -}}
{{- with .root.Values.database -}}
{{- if and .passwordKey (has $.component (list "rlmm" "migration" "maintenance")) -}}
{{- $secret := ternary .existingSecret (include "sediment.ownerSecret" $.root) (eq $.component "rlmm") -}}
{{- $files = append $files (dict "name" "database-password" "mountPath" "/etc/sediment/database" "secretName" $secret "items" (list (dict "key" .passwordKey "path" "password"))) -}}
{{- end -}}
{{- end -}}
{{- toJson $files -}}
{{- end -}}

{{- /* With an fsGroup the kubelet gives the files to that group; without one only "all users" fits. */ -}}
{{- define "sediment.secretMode" -}}
{{- $pod := include "sediment.podSecurityContext" . | fromYaml -}}
{{- and (hasKey $pod "fsGroup") (not .foreignPod) | ternary "0440" "0444" -}}
{{- end -}}

{{- define "sediment.secretVolumes" -}}
{{- range include "sediment.secretFiles" . | fromJsonArray }}
- name: {{ .name }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: {{ include "sediment.secretMode" $ }}
    items:
      {{- toYaml .items | nindent 6 }}
{{- end }}
{{- end -}}

{{- define "sediment.secretVolumeMounts" -}}
{{- range include "sediment.secretFiles" . | fromJsonArray }}
- name: {{ .name }}
  mountPath: {{ .mountPath }}
  readOnly: true
{{- end }}
{{- end -}}
