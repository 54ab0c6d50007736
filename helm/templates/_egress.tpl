{{- /* What a pod may reach. Call with (dict "root" $ "component" "rsm"). */ -}}

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
{{- range list "RSM_STS_ENDPOINT" "RSM_PUBLIC_STORE_ENDPOINT" -}}
{{- with regexFind ":[0-9]+" (dig . "" $.Values.rsm.settings) -}}{{- $ports = append $ports (trimPrefix ":" . | int) -}}{{- end -}}
{{- end -}}
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

{{- /* Of drivers and executors, as JSON: the cluster's API, and what URLs in the values name. Call with (dict "root" $ "group" "checks" "component" "reconcile"). */ -}}
{{- define "sediment.sparkPorts" -}}
{{- $own := index .root.Values .group -}}
{{- $ports := ternary (list 443 6443) list (include "sediment.hasExecutors" . | eq "true") -}}
{{- $paths := list $own.workDir -}}
{{- if has .component (list "reconcile" "check-executor") -}}{{- $paths = append $paths $own.reconcile.inventory -}}{{- end -}}
{{- if or $own.sparkConf (contains ":" (join "" $paths)) -}}{{- $ports = append $ports 443 -}}{{- end -}}
{{- range concat (values $own.sparkConf) $paths -}}
{{- /* HDFS's nodes with the data. */ -}}
{{- if hasPrefix "hdfs:" (toString .) -}}{{- $ports = append $ports 9866 -}}{{- end -}}
{{- with regexFind "^([a-z0-9]+://)?[^/:]+:[0-9]+" (toString .) -}}{{- $ports = append $ports (regexFind "[0-9]+$" . | int) -}}{{- end -}}
{{- end -}}
{{- .root.Values.networkPolicy.egress.sparkPorts | default (uniq $ports) | toJson -}}
{{- end -}}

{{- /* To the services of this release. Call with (dict "root" $ "component" "rlm"). */ -}}
{{- define "sediment.egressToRelease" -}}
{{- $ports := list -}}
{{- range $name, $port := include "sediment.ports" (dict "root" .root "component" "rsm") | fromJson -}}
{{- if or (eq $name "grpc") (and (eq $name "tokens") (not (has $.component (list "rlm" "console")))) -}}{{- $ports = append $ports $port -}}{{- end -}}
{{- end -}}
{{- $own := dict "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/part-of" "sediment" -}}
{{- if or .root.Values.rsm.enabled .root.Values.rlmm.enabled -}}
{{- include "sediment.egressRule" (dict "ports" $ports "to" (list (dict "podSelector" (dict "matchLabels" $own)))) -}}
{{- end -}}
{{- with include "sediment.portsElsewhere" .root | fromJsonArray }}
{{ include "sediment.egressRule" (dict "ports" . "to" $.root.Values.networkPolicy.egress.servicesTo) }}
{{- end -}}
{{- end -}}

{{- /* Of RSM and RLMM that are not of this release, as JSON. */ -}}
{{- define "sediment.portsElsewhere" -}}
{{- $ports := list -}}
{{- range $service := list "rsm" "rlmm" -}}
{{- with index $.Values $service -}}
{{- range ternary list (list .address .tokenAddress) .enabled -}}
{{- with regexFind "[0-9]+$" . -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- uniq $ports | toJson -}}
{{- end -}}

{{- define "sediment.egress" -}}
{{- $spark := dict "root" .root "component" .component "group" (include "sediment.group" .) -}}
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
{{- if has .component (list "rlmm" "migration" "maintenance") }}
{{- with $egress.databasePorts }}
{{ include "sediment.egressRule" (dict "ports" . "to" $egress.databaseTo) }}
{{- end }}
{{- end }}
{{- $isClient := or $spark.group (has .component (list "rlm" "console" "selftest")) }}
{{- if or $isClient (and (eq .component "maintenance") .root.Values.maintenance.keepState) }}
{{ include "sediment.egressToRelease" . | trim }}
{{- end }}
{{- if and $spark.group (ne (index .root.Values $spark.group "engine") "local") }}
{{- if include "sediment.hasExecutors" $spark }}
{{ include "sediment.egressRule" (dict "ports" (list 7078 7079) "to" (list (include "sediment.sparkPeer" $spark | fromYaml))) }}
{{- end }}
{{- with include "sediment.sparkPorts" $spark | fromJsonArray }}
{{ include "sediment.egressRule" (dict "ports" . "to" $egress.sparkTo) }}
{{- end }}
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
{{- $values := index .root.Values .component }}
{{- $settings := kindIs "map" $values | ternary $values dict | dig "settings" dict }}
{{- with regexFind "[0-9]+$" (dig (printf "%s_TRACES_ENDPOINT" (upper .component)) "" $settings) }}
{{ include "sediment.egressRule" (dict "ports" (list .) "to" list) }}
{{- end }}
{{- with $egress.extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}
