{{- /* What a service may reach. Call with (dict "root" $ "component" "rsm"). */ -}}

{{- /* One rule. Call with (dict "ports" (list 443) "to" list): no peers are any peer. */ -}}
{{- define "sediment.egressRule" -}}
- ports:
    {{- range .ports }}
    - port: {{ int . }}
      protocol: TCP
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- /* As JSON. */ -}}
{{- define "sediment.storePorts" -}}
{{- $store := .Values.objectStore -}}
{{- $own := regexFind ":[0-9]+$" $store.endpoint | trimPrefix ":" | default (ternary "443" "80" $store.secure) | int -}}
{{- $ports := list $own -}}
{{- /* An STS; of `aws` also the metadata service of the node. */ -}}
{{- if ne $store.credentials "files" -}}{{- $ports = append $ports 443 -}}{{- end -}}
{{- if eq $store.credentials "aws" -}}{{- $ports = append $ports 80 -}}{{- end -}}
{{- .Values.networkPolicy.egress.storePorts | default (uniq $ports) | toJson -}}
{{- end -}}

{{- /* As JSON. */ -}}
{{- define "sediment.brokerPorts" -}}
{{- $ports := list -}}
{{- range splitList "," (dig "RLM_BOOTSTRAP_SERVERS" "" .Values.rlm.settings) -}}
{{- with regexFind "[0-9]+$" (trim .) -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- end -}}
{{- .Values.networkPolicy.egress.brokerPorts | default (uniq $ports) | toJson -}}
{{- end -}}

{{- define "sediment.egress" -}}
{{- $egress := .root.Values.networkPolicy.egress -}}
- ports:
    - port: 53
      protocol: UDP
    - port: 53
      protocol: TCP
  {{- with $egress.dnsTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- if eq .component "rsm" }}
{{ include "sediment.egressRule" (dict "ports" (include "sediment.storePorts" .root | fromJsonArray) "to" $egress.storeTo) }}
{{- end }}
{{- if eq .component "rlmm" }}
{{- with $egress.databasePorts }}
{{ include "sediment.egressRule" (dict "ports" . "to" $egress.databaseTo) }}
{{- end }}
{{- end }}
{{- if has .component (list "rlm" "console") }}
{{- $grpc := index (include "sediment.ports" (dict "root" .root "component" "rsm") | fromJson) "grpc" }}
{{- $own := dict "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/part-of" "sediment" }}
{{ include "sediment.egressRule" (dict "ports" (list $grpc) "to" (list (dict "podSelector" (dict "matchLabels" $own)))) }}
{{- end }}
{{- if eq .component "console" }}
{{- $rlms := list }}
{{- range .root.Values.console.rlmAddresses }}
{{- $rlms = append $rlms (regexFind "[0-9]+$" . | int) }}
{{- end }}
{{- with uniq $rlms }}
{{ include "sediment.egressRule" (dict "ports" . "to" $egress.brokersTo) }}
{{- end }}
{{- end }}
{{- if eq .component "rlm" }}
{{- with include "sediment.brokerPorts" .root | fromJsonArray }}
{{ include "sediment.egressRule" (dict "ports" . "to" $egress.brokersTo) }}
{{- end }}
{{- if eq (dig "RLM_DIRECT_READS" false .root.Values.rlm.settings | toString) "true" }}
{{ include "sediment.egressRule" (dict "ports" (include "sediment.storePorts" .root | fromJsonArray) "to" $egress.storeTo) }}
{{- end }}
{{- end }}
{{- $settings := dig "settings" dict (index .root.Values .component) }}
{{- with regexFind "[0-9]+$" (dig (printf "%s_TRACES_ENDPOINT" (upper .component)) "" $settings) }}
{{ include "sediment.egressRule" (dict "ports" (list .) "to" list) }}
{{- end }}
{{- with $egress.extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}
