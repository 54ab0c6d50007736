{{- /* TLS of the services and of those that call them: settings, files and who is who. */ -}}

{{- /* "true" if a component has a token instead of a certificate. Call with (dict "root" $ "component" "sweeps"). */ -}}
{{- define "sediment.hasToken" -}}
{{- if has .component (list "sweeps" "checks" "selftest") -}}
{{- if eq (index .root.Values .component).credentials "token" -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The secret with tls.crt, tls.key and ca.crt. Call with (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.tlsSecret" -}}
{{- $component := .component -}}
{{- if include "sediment.hasToken" . -}}
{{- $component = ternary "rsm" "rlmm" .root.Values.rsm.enabled -}}
{{- end -}}
{{- index .root.Values.tls.existingSecrets .component | default (printf "%s-tls" (include "sediment.name" (dict "root" .root "component" $component))) -}}
{{- end -}}

{{- define "sediment.policyName" -}}
{{- .Values.tls.policy.existingConfigMap | default (printf "%s-policy" (include "sediment.fullname" .)) -}}
{{- end -}}

{{- /* The SPIFFE id in a component's certificate, or the service account of its token; "values" are those of the component. */ -}}
{{- define "sediment.identity" -}}
{{- if include "sediment.hasToken" . -}}
{{- printf "system:serviceaccount:%s:%s" .root.Release.Namespace (include "sediment.serviceAccountName" .) -}}
{{- else -}}
{{- printf "spiffe://%s/ns/%s/sa/%s" .root.Values.tls.certManager.trustDomain .root.Release.Namespace (include "sediment.serviceAccountName" .) -}}
{{- end -}}
{{- end -}}

{{- /* Those that call or serve over TLS, as JSON. */ -}}
{{- define "sediment.tlsComponents" -}}
{{- $all := include "sediment.services" . | fromJsonArray -}}
{{- if .Values.rlm.sidecar.enabled -}}{{- $all = append $all "rlm" -}}{{- end -}}
{{- if or .Values.sweeps.retention.enabled .Values.sweeps.removal.enabled -}}{{- $all = append $all "sweeps" -}}{{- end -}}
{{- if or .Values.checks.reconcile.enabled .Values.checks.scrub.enabled -}}{{- $all = append $all "checks" -}}{{- end -}}
{{- if and (include "sediment.hasDatabaseJob" (dict "root" . "job" "maintenance")) .Values.maintenance.keepState -}}{{- $all = append $all "maintenance" -}}{{- end -}}
{{- if include "sediment.hasSelftest" . -}}{{- $all = append $all "selftest" -}}{{- end -}}
{{- if .Values.console.enabled -}}{{- $all = append $all "console" -}}{{- end -}}
{{- uniq $all | toJson -}}
{{- end -}}

{{- /* "true" if `helm test` has a pod: with secrets of the user's own it needs one more of them. */ -}}
{{- define "sediment.hasSelftest" -}}
{{- $isKnown := or (not .Values.tls.enabled) .Values.tls.certManager.enabled .Values.tls.existingSecrets.selftest -}}
{{- if and .Values.selftest.enabled $isKnown -}}true{{- end -}}
{{- end -}}

{{- /* Those that have a certificate of their own, as JSON. */ -}}
{{- define "sediment.certified" -}}
{{- $all := list -}}
{{- range include "sediment.tlsComponents" . | fromJsonArray -}}
{{- if not (include "sediment.hasToken" (dict "root" $ "component" .)) -}}{{- $all = append $all . -}}{{- end -}}
{{- end -}}
{{- toJson $all -}}
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
{{- if hasKey (include "sediment.ports" . | fromJson) "tokens" }}
{{ $prefix }}_TOKEN_JWKS_FILE: /etc/sediment/token-keys/jwks.json
{{ $prefix }}_TOKEN_ISSUER: {{ .root.Values.tls.tokens.issuer | quote }}
{{ $prefix }}_TOKEN_AUDIENCE: {{ .root.Values.tls.tokens.audience | quote }}
{{- end }}
{{- else -}}
{{ $prefix }}_PLAINTEXT: {{ .root.Values.tls.plaintext | quote }}
{{- end -}}
{{- end -}}

{{- /* The volumes of a service, a sweep, a check, the maintenance or the self-test. Call with (dict "root" $ "component" "rsm"). */ -}}
{{- define "sediment.tlsVolumes" -}}
{{- if and .root.Values.tls.enabled (has .component (include "sediment.tlsComponents" .root | fromJsonArray)) }}
- name: tls
  secret:
    secretName: {{ include "sediment.tlsSecret" . }}
    defaultMode: {{ include "sediment.secretMode" . }}
{{- if include "sediment.hasToken" . }}
    # Of this secret, which may be that of a service, the pod sees no key.
    items:
      - key: ca.crt
        path: ca.crt
- name: token
  projected:
    sources:
      # The kubelet renews it; each call reads the newest.
      - serviceAccountToken:
          audience: {{ .root.Values.tls.tokens.audience }}
          expirationSeconds: {{ int .root.Values.tls.tokens.expirationSeconds }}
          path: token
{{- end }}
{{- if not (has .component (list "sweeps" "checks" "maintenance" "selftest")) }}
- name: policy
  configMap:
    name: {{ include "sediment.policyName" .root }}
{{- end }}
{{- if hasKey (include "sediment.ports" . | fromJson) "tokens" }}
- name: token-keys
  configMap:
    name: {{ .root.Values.tls.tokens.existingConfigMap }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "sediment.tlsVolumeMounts" -}}
{{- if and .root.Values.tls.enabled (has .component (include "sediment.tlsComponents" .root | fromJsonArray)) }}
- name: tls
  mountPath: /etc/sediment/tls
  readOnly: true
{{- if include "sediment.hasToken" . }}
- name: token
  mountPath: /etc/sediment/token
  readOnly: true
{{- end }}
{{- if not (has .component (list "sweeps" "checks" "maintenance" "selftest")) }}
- name: policy
  mountPath: /etc/sediment/policy
  readOnly: true
{{- end }}
{{- if hasKey (include "sediment.ports" . | fromJson) "tokens" }}
- name: token-keys
  mountPath: /etc/sediment/token-keys
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- /* How a sweep, a check, the maintenance or the self-test connects, as a container's env. Call with (dict "root" $ "component" "sweeps"). */ -}}
{{- define "sediment.clientEnv" -}}
{{- if .root.Values.tls.enabled }}
- name: SEDIMENT_TLS_CA_FILE
  value: /etc/sediment/tls/ca.crt
{{- if include "sediment.hasToken" . }}
- name: SEDIMENT_TOKEN_FILE
  value: /etc/sediment/token/token
{{- else }}
- name: SEDIMENT_TLS_CERTIFICATE_FILE
  value: /etc/sediment/tls/tls.crt
- name: SEDIMENT_TLS_KEY_FILE
  value: /etc/sediment/tls/tls.key
{{- end }}
{{- else }}
- name: SEDIMENT_PLAINTEXT
  value: {{ .root.Values.tls.plaintext | quote }}
{{- end }}
{{- end -}}

{{- define "sediment.wrongTls" -}}
{{- $wrong := list -}}
{{- with .Values.tls -}}
{{- if and .enabled .plaintext -}}
{{- $wrong = append $wrong "tls.enabled and tls.plaintext are both true: choose one." -}}
{{- else if not (or .enabled .plaintext) -}}
{{- $wrong = append $wrong "tls.enabled and tls.plaintext are both false: set tls.enabled and give certificates, or set tls.plaintext, with which anyone who can reach the services can read and delete everything." -}}
{{- end -}}
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
{{- $wrong = append $wrong (printf "tls.existingSecrets.%s is empty: name the secret with %s, or set tls.certManager.enabled." $component (has $component (include "sediment.certified" $ | fromJsonArray) | ternary "tls.crt, tls.key and ca.crt" "ca.crt")) -}}
{{- end -}}
{{- end -}}
{{- if not (or .policy.existingConfigMap .policy.grants) -}}
{{- $wrong = append $wrong "tls.policy is empty, so every call would be refused: give tls.policy.grants, or tls.policy.existingConfigMap with the key policy.toml." -}}
{{- end -}}
{{- end -}}
{{- if and .policy.existingConfigMap .policy.grants -}}
{{- $wrong = append $wrong "tls.policy.existingConfigMap and tls.policy.grants are both set: choose one." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- concat $wrong (include "sediment.wrongTokens" . | fromJsonArray) | toJson -}}
{{- end -}}

{{- define "sediment.wrongTokens" -}}
{{- $wrong := list -}}
{{- with .Values.tls.tokens -}}
{{- if .enabled -}}
{{- if not $.Values.tls.enabled -}}
{{- $wrong = append $wrong "tls.tokens.enabled is true and tls.enabled is not: tokens are sent over TLS only; set tls.enabled." -}}
{{- end -}}
{{- range $key, $remedy := dict "existingConfigMap" "name the ConfigMap with the key jwks.json, the output of `kubectl get --raw /openid/v1/jwks`" "issuer" "give the issuer that `kubectl get --raw /.well-known/openid-configuration` names" -}}
{{- if not (index $.Values.tls.tokens $key) -}}
{{- $wrong = append $wrong (printf "tls.tokens.%s is empty: %s." $key $remedy) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $tokens := . -}}
{{- range $component := include "sediment.tlsComponents" $ | fromJsonArray -}}
{{- if include "sediment.hasToken" (dict "root" $ "component" $component) -}}
{{- if and (not $tokens.enabled) (or $.Values.rsm.enabled $.Values.rlmm.enabled) -}}
{{- $wrong = append $wrong (printf "%s.credentials is token, and no port takes tokens: set tls.tokens.enabled." $component) -}}
{{- end -}}
{{- if and $.Values.tls.certManager.enabled (not (or $.Values.rsm.enabled $.Values.rlmm.enabled)) -}}
{{- $wrong = append $wrong (printf "%s.credentials is token, tls.certManager.enabled is true and this release has neither RSM nor RLMM, whose secret would have their ca.crt: set tls.certManager.enabled to false and name a secret with it in tls.existingSecrets.%s." $component $component) -}}
{{- end -}}
{{- $values := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values $component)) -}}
{{- if eq (include "sediment.serviceAccountName" (dict "root" $ "component" $component "values" $values)) "default" -}}
{{- $wrong = append $wrong (printf "%s.credentials is token, and the %s have the service account default, as every pod may have: name another in %s.serviceAccount.name, or set %s.serviceAccount.create." $component $component $component $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
