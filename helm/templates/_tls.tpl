{{- /* TLS of the services and of those that call them: settings, files and who is who. */ -}}

{{- /* The secret with tls.crt, tls.key and ca.crt. Call with (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.tlsSecret" -}}
{{- index .root.Values.tls.existingSecrets .component | default (printf "%s-tls" (include "sediment.name" .)) -}}
{{- end -}}

{{- define "sediment.policyName" -}}
{{- .Values.tls.policy.existingConfigMap | default (printf "%s-policy" (include "sediment.fullname" .)) -}}
{{- end -}}

{{- /* The SPIFFE id in a component's certificate; "values" are those of the component. */ -}}
{{- define "sediment.identity" -}}
{{- printf "spiffe://%s/ns/%s/sa/%s" .root.Values.tls.certManager.trustDomain .root.Release.Namespace (include "sediment.serviceAccountName" .) -}}
{{- end -}}

{{- /* Those that have a certificate of their own, as JSON. */ -}}
{{- define "sediment.tlsComponents" -}}
{{- $all := include "sediment.services" . | fromJsonArray -}}
{{- if .Values.rlm.sidecar.enabled -}}{{- $all = append $all "rlm" -}}{{- end -}}
{{- if or .Values.sweeps.retention.enabled .Values.sweeps.removal.enabled -}}{{- $all = append $all "sweeps" -}}{{- end -}}
{{- uniq $all | toJson -}}
{{- end -}}

{{- /* Settings of a service. Call with (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.tlsSettings" -}}
{{- $prefix := upper .component -}}
{{- if .root.Values.tls.enabled -}}
{{ $prefix }}_TLS_CERTIFICATE_FILE: /etc/sediment/tls/tls.crt
{{ $prefix }}_TLS_KEY_FILE: /etc/sediment/tls/tls.key
{{ $prefix }}_TLS_CLIENT_CA_FILE: /etc/sediment/tls/ca.crt
{{ $prefix }}_POLICY_FILE: /etc/sediment/policy/policy.toml
{{ $prefix }}_METRICS_PLAINTEXT: {{ .root.Values.tls.metricsPlaintext | quote }}
{{- else -}}
{{ $prefix }}_PLAINTEXT: "true"
{{- end -}}
{{- end -}}

{{- /* The volumes of a service or a sweep. Call with (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.tlsVolumes" -}}
{{- if and .root.Values.tls.enabled (has .component (list "rsm" "rlmm" "rlm" "sweeps")) }}
- name: tls
  secret:
    secretName: {{ include "sediment.tlsSecret" . }}
    defaultMode: 0444
{{- if ne .component "sweeps" }}
- name: policy
  configMap:
    name: {{ include "sediment.policyName" .root }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sediment.tlsVolumeMounts" -}}
{{- if and .root.Values.tls.enabled (has .component (list "rsm" "rlmm" "rlm" "sweeps")) }}
- name: tls
  mountPath: /etc/sediment/tls
  readOnly: true
{{- if ne .component "sweeps" }}
- name: policy
  mountPath: /etc/sediment/policy
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- /* How a sweep connects, as a container's env. */ -}}
{{- define "sediment.clientEnv" -}}
{{- if .Values.tls.enabled }}
- name: SEDIMENT_TLS_CA_FILE
  value: /etc/sediment/tls/ca.crt
- name: SEDIMENT_TLS_CERTIFICATE_FILE
  value: /etc/sediment/tls/tls.crt
- name: SEDIMENT_TLS_KEY_FILE
  value: /etc/sediment/tls/tls.key
{{- else }}
- name: SEDIMENT_PLAINTEXT
  value: "true"
{{- end }}
{{- end -}}

{{- define "sediment.wrongTls" -}}
{{- $wrong := list -}}
{{- with .Values.tls -}}
{{- if .enabled -}}
{{- if .certManager.enabled -}}
{{- if not .certManager.issuerRef.name -}}
{{- $wrong = append $wrong "tls.certManager.issuerRef.name is empty: name the Issuer that signs the certificates of this release." -}}
{{- end -}}
{{- range $component, $secret := .existingSecrets -}}
{{- if $secret -}}
{{- $wrong = append $wrong (printf "tls.existingSecrets.%s and tls.certManager.enabled are both set: choose one." $component) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range $component := include "sediment.tlsComponents" $ | fromJsonArray -}}
{{- if not (index $.Values.tls.existingSecrets $component) -}}
{{- $wrong = append $wrong (printf "tls.existingSecrets.%s is empty: name the secret with tls.crt, tls.key and ca.crt, or set tls.certManager.enabled." $component) -}}
{{- end -}}
{{- end -}}
{{- if not (or .policy.existingConfigMap .policy.grants) -}}
{{- $wrong = append $wrong "tls.policy is empty, and nobody could call the services: give tls.policy.grants, or tls.policy.existingConfigMap with the key policy.toml." -}}
{{- end -}}
{{- end -}}
{{- if and .policy.existingConfigMap .policy.grants -}}
{{- $wrong = append $wrong "tls.policy.existingConfigMap and tls.policy.grants are both set: choose one." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
