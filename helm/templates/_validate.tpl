{{- /* What the schema cannot say: all that is wrong at once, a sentence each. */ -}}
{{- define "sediment.validate" -}}
{{- $wrong := concat
      (include "sediment.missing" . | fromJsonArray)
      (include "sediment.wrongAddresses" . | fromJsonArray)
      (include "sediment.wrongServices" . | fromJsonArray)
      (include "sediment.wrongRlm" . | fromJsonArray)
      (include "sediment.wrongEnv" . | fromJsonArray)
      (include "sediment.wrongTls" . | fromJsonArray)
      (include "sediment.wrongVolumes" . | fromJsonArray)
      (include "sediment.wrongSpark" . | fromJsonArray)
      (include "sediment.wrongChecks" . | fromJsonArray)
      (include "sediment.wrongMemory" . | fromJsonArray)
      (include "sediment.wrongStorage" . | fromJsonArray) -}}
{{- if $wrong -}}
{{- fail (printf "\n- %s" (join "\n- " $wrong)) -}}
{{- end -}}
{{- end -}}

{{- define "sediment.missing" -}}
{{- $wrong := list -}}
{{- $required := dict "image.repository" "name the image built from docker/Dockerfile" -}}
{{- if .Values.rlmm.enabled -}}
{{- $_ := set $required "database.existingSecret" "name the secret that has the PostgreSQL URL" -}}
{{- end -}}
{{- if .Values.rsm.enabled -}}
{{- $_ := set $required "objectStore.endpoint" "give the store's HOST:PORT" -}}
{{- $_ := set $required "objectStore.region" "give the store's region; most stores of your own take us-east-1" -}}
{{- $_ := set $required "objectStore.bucket" "name the bucket, which must exist" -}}
{{- end -}}
{{- range $path, $remedy := $required -}}
{{- $keys := splitList "." $path -}}
{{- if not (index $.Values (first $keys) (last $keys)) -}}
{{- $wrong = append $wrong (printf "%s is empty: %s." $path $remedy) -}}
{{- end -}}
{{- end -}}
{{- with .Values.objectStore -}}
{{- if and $.Values.rsm.enabled (has .credentials (list "files" "assume-role")) (not .existingSecret) -}}
{{- $wrong = append $wrong "objectStore.existingSecret is empty: name the secret that has the S3 keys, or choose other objectStore.credentials." -}}
{{- end -}}
{{- end -}}
{{- if and (include "sediment.drivers" (dict "root" . "group" "sweeps") | fromJson) (ne .Values.sweeps.engine "local") (not .Values.sparkImage.repository) -}}
{{- $wrong = append $wrong "sparkImage.repository is empty: name the image built from docker/Dockerfile.spark, or set sweeps.engine to local, or sweeps.retention.enabled and sweeps.removal.enabled to false." -}}
{{- end -}}
{{- if and (eq .Values.checks.engine "spark") (or .Values.checks.reconcile.enabled .Values.checks.scrub.enabled) (not .Values.sparkImage.repository) -}}
{{- $wrong = append $wrong "sparkImage.repository is empty: name the image built from docker/Dockerfile.spark, or set checks.engine to local." -}}
{{- end -}}
{{- if and .Values.console.enabled (not .Values.tls.enabled) -}}
{{- $wrong = append $wrong "console.enabled is true and tls.enabled is not: without TLS the console serves its own pod only; set tls.enabled, or run `sediment console` where you are." -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.metricsFrom) -}}
{{- $wrong = append $wrong "monitoring.serviceMonitor.enabled is true and networkPolicy.metricsFrom is empty, so that Prometheus reaches no pod: name its namespace there, or set networkPolicy.enabled to false." -}}
{{- end -}}
{{- $fullname := include "sediment.fullname" . -}}
{{- if gt (len $fullname) 28 -}}
{{- $wrong = append $wrong (printf "the name %s has %d characters, and with -partition-removal-sweep it is too long for a CronJob: set fullnameOverride to at most 28." $fullname (len $fullname)) -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- /* A service that is not of this release is somewhere else, if anything here calls it. */ -}}
{{- define "sediment.wrongAddresses" -}}
{{- $wrong := list -}}
{{- $clients := without (include "sediment.tlsComponents" . | fromJsonArray) "rsm" "rlmm" -}}
{{- range $service := list "rsm" "rlmm" -}}
{{- with index $.Values $service -}}
{{- if and .enabled (or .address .tokenAddress) -}}
{{- $wrong = append $wrong (printf "%s.address and %s.tokenAddress are those of another release's, and %s.enabled is true: remove them, or set it to false." $service $service $service) -}}
{{- end -}}
{{- if and (not .enabled) (not .address) $clients -}}
{{- $wrong = append $wrong (printf "%s.enabled is false and %s.address is empty: give the HOST:PORT of the %s that this release calls (%s), or set %s.enabled." $service $service (upper $service) (join ", " $clients) $service) -}}
{{- end -}}
{{- range $client := $clients -}}
{{- if and (include "sediment.hasToken" (dict "root" $ "component" $client)) (not (index $.Values $service "enabled")) (not (index $.Values $service "tokenAddress")) -}}
{{- $wrong = append $wrong (printf "%s.credentials is token and %s.tokenAddress is empty: give the HOST:PORT at which that %s takes tokens." $client $service (upper $service)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.checks -}}
{{- if and .reconcile.enabled .reconcile.inventory (not (or .reconcile.inventoryBucket $.Values.objectStore.bucket)) -}}
{{- $wrong = append $wrong "checks.reconcile.inventoryBucket is empty, and so is objectStore.bucket: name the bucket that the inventory is of." -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sediment.wrongServices" -}}
{{- $wrong := list -}}
{{- range $component := list "rsm" "rlmm" "rlm" -}}
{{- $values := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy (index $.Values $component)) -}}
{{- $setting := printf "%s_DRAIN_TIMEOUT_MS" (upper $component) -}}
{{- $drain := get $values.settings $setting | default 10000 | int64 -}}
{{- $rest := $drain -}}
{{- $named := printf "twice %s" $setting -}}
{{- if eq $component "rsm" -}}
{{- /* One request to a store that is silent, and the clean-up of the copy that it was of. */ -}}
{{- $connect := $values.settings.RSM_CONNECT_TIMEOUT_MS | default 5000 | int64 -}}
{{- $read := $values.settings.RSM_READ_TIMEOUT_MS | default 30000 | int64 -}}
{{- $rest = add (mul 2 $connect) $read 20000 -}}
{{- $named = printf "%s, twice RSM_CONNECT_TIMEOUT_MS, RSM_READ_TIMEOUT_MS and 20 s" $setting -}}
{{- end -}}
{{- $least := add $values.preStopSeconds (div (add $drain $rest 999) 1000) -}}
{{- if le (int64 $values.terminationGracePeriodSeconds) (int64 $least) -}}
{{- $wrong = append $wrong (printf "%s.terminationGracePeriodSeconds is %d, and %s would be killed while it drains: more than %d are needed, preStopSeconds plus %s." $component (int64 $values.terminationGracePeriodSeconds) $component (int64 $least) $named) -}}
{{- end -}}
{{- end -}}
{{- range $component := list "rsm" "rlmm" -}}
{{- with index $.Values $component -}}
{{- if .autoscaling.enabled -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- $wrong = append $wrong (printf "%s.autoscaling.minReplicas is %d, more than maxReplicas, %d: lower one." $component (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if not (or .autoscaling.targetCPUUtilizationPercentage .autoscaling.metrics) -}}
{{- $wrong = append $wrong (printf "%s.autoscaling has no metric: set targetCPUUtilizationPercentage or metrics." $component) -}}
{{- end -}}
{{- if and .autoscaling.targetCPUUtilizationPercentage (not (dig "requests" "cpu" "" .resources)) -}}
{{- $wrong = append $wrong (printf "%s.autoscaling goes by the share of resources.requests.cpu, which is not set: set it, or set targetCPUUtilizationPercentage to null and give metrics." $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $component := list "rsm" "rlmm" -}}
{{- with (index $.Values $component).podDisruptionBudget -}}
{{- if and .enabled (has (toString .maxUnavailable) (list "0" "0%")) -}}
{{- $wrong = append $wrong (printf "%s.podDisruptionBudget.maxUnavailable is %v, so that no node with a pod of %s could ever be drained: allow at least 1, or set %s.podDisruptionBudget.enabled to false." $component .maxUnavailable $component $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- /* A pod is evicted above its limit, which its volumes on the node count for. */ -}}
{{- define "sediment.wrongStorage" -}}
{{- $wrong := list -}}
{{- $pods := list -}}
{{- range $component := list "rlmm" "sweeps" "checks" -}}
{{- $own := index $.Values $component -}}
{{- if or (ne $component "checks") (eq $own.engine "spark") -}}
{{- $pods = append $pods (dict "at" $component "resources" $own.resources "value" (printf "%s.scratchSizeLimit" $component) "size" $own.scratchSizeLimit) -}}
{{- end -}}
{{- if and (ne $component "rlmm") (include "sediment.hasExecutors" (dict "root" $ "group" $component)) -}}
{{- $pods = append $pods (dict "at" (printf "%s.executors" $component) "resources" $own.executors.resources "value" (printf "%s.scratchSizeLimit" $component) "size" $own.scratchSizeLimit) -}}
{{- end -}}
{{- end -}}
{{- with .Values.rlm -}}
{{- if and (or .enabled .sidecar.enabled) (not .indexCache.source) -}}
{{- $pods = append $pods (dict "at" "rlm" "resources" .resources "value" "rlm.indexCache.totalSizeBytes with its reserve" "size" (include "sediment.indexCacheVolumeBytes" .indexCache)) -}}
{{- end -}}
{{- end -}}
{{- range $pods -}}
{{- $limit := dig "limits" "ephemeral-storage" "" (.resources | default dict) -}}
{{- $bytes := include "sediment.bytes" (dict "amount" $limit) | int64 -}}
{{- if and (gt $bytes 0) (le $bytes (include "sediment.bytes" (dict "amount" .size) | int64)) -}}
{{- $wrong = append $wrong (printf "%s.resources.limits.ephemeral-storage is %s and %s is %s, which counts for it beside the logs: raise the one or lower the other." .at $limit .value .size) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sediment.wrongChecks" -}}
{{- $wrong := list -}}
{{- with .Values.checks -}}
{{- if and (ne .engine "spark") (or .reconcile.inventory .sparkDefaultsSecret) -}}
{{- $wrong = append $wrong "checks.reconcile.inventory and checks.sparkDefaultsSecret are for Spark, and checks.engine is local: set it to spark, or remove them." -}}
{{- end -}}
{{- if and .reconcile.inventory (gt (len .reconcile.locations) 1) -}}
{{- $wrong = append $wrong (printf "checks.reconcile.inventory is of one location, and checks.reconcile.locations has %d: leave one." (len .reconcile.locations)) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sediment.wrongRlm" -}}
{{- $wrong := list -}}
{{- with .Values.monitoring.podMonitor -}}
{{- if and .enabled (not $.Values.rlm.sidecar.enabled) -}}
{{- $wrong = append $wrong "monitoring.podMonitor.enabled is for RLM in the brokers' pods: set rlm.sidecar.enabled, or use monitoring.serviceMonitor." -}}
{{- end -}}
{{- if and .enabled (not .selector) -}}
{{- $wrong = append $wrong "monitoring.podMonitor.selector is empty: give the labels of the brokers' pods." -}}
{{- end -}}
{{- end -}}
{{- with .Values.rlm -}}
{{- if and .enabled .sidecar.enabled -}}
{{- $wrong = append $wrong "rlm.enabled and rlm.sidecar.enabled are both true, and two RLMs would ship the same directories: choose one." -}}
{{- end -}}
{{- if or .enabled .sidecar.enabled -}}
{{- if not .logVolumes -}}
{{- $wrong = append $wrong "rlm has no log volume: give rlm.logVolumes, the volumes that hold the broker's log.dirs." -}}
{{- end -}}
{{- if not .logDirs -}}
{{- $wrong = append $wrong "rlm.logDirs is empty: give the broker's log.dirs, as RLM's container sees them." -}}
{{- end -}}
{{- range $volume := .logVolumes -}}
{{- if and $.Values.rlm.enabled (ne (len (default dict $volume.source)) 1) -}}
{{- $wrong = append $wrong (printf "rlm.logVolumes: the volume %s needs one source, hostPath or persistentVolumeClaim." $volume.name) -}}
{{- end -}}
{{- end -}}
{{- range $dir := .logDirs -}}
{{- $covered := false -}}
{{- range $.Values.rlm.logVolumes -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" (trimSuffix "/" $dir)) -}}
{{- $covered = true -}}
{{- end -}}
{{- end -}}
{{- if and $.Values.rlm.logVolumes (not $covered) -}}
{{- $wrong = append $wrong (printf "rlm.logDirs: %s is on none of rlm.logVolumes: one of their mountPaths must hold it." $dir) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- define "sediment.wrongEnv" -}}
{{- $wrong := list -}}
{{- range $where := list "defaults" "rsm" "rlmm" "rlm" "migration" "maintenance" "sweeps" "checks" "selftest" "console" -}}
{{- range (index $.Values $where).extraEnv -}}
{{- if regexMatch "^(RSM|RLMM|RLM)_" .name -}}
{{- $wrong = append $wrong (printf "%s.extraEnv has %s, a setting: settings go to rsm.settings, rlmm.settings and rlm.settings." $where .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- /* Of lists that are given under defaults, each sentence once. */ -}}
{{- define "sediment.wrongVolumes" -}}
{{- $wrong := list -}}
{{- range $component := list "rsm" "rlmm" "rlm" "migration" "maintenance" "sweeps" "checks" "selftest" "console" -}}
{{- $own := index $.Values $component -}}
{{- $values := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy $own) -}}
{{- $volumesAt := printf "%s.extraVolumes" (hasKey $own "extraVolumes" | ternary $component "defaults") -}}
{{- $mountsAt := printf "%s.extraVolumeMounts" (hasKey $own "extraVolumeMounts" | ternary $component "defaults") -}}
{{- $taken := list "scratch" "object-store-keys" "database-password" "tls" "policy" "token" "token-keys" "executors" "spark-defaults" "spark-local-dir-1" -}}
{{- $paths := list "/tmp" "/etc/sediment/object-store" "/etc/sediment/database" "/etc/sediment/tls" "/etc/sediment/policy" "/etc/sediment/token" "/etc/sediment/token-keys" "/etc/sediment/executors" "/etc/sediment/spark" "/var/data" -}}
{{- if eq $component "rlm" -}}
{{- $taken = append $taken "index-cache" -}}
{{- $paths = append $paths "/var/cache/sediment" -}}
{{- end -}}
{{- range $values.logVolumes -}}
{{- $taken = append $taken .name -}}
{{- $paths = append $paths (trimSuffix "/" .mountPath) -}}
{{- end -}}
{{- $names := list -}}
{{- range $values.extraVolumes -}}
{{- if has .name $taken -}}
{{- $wrong = append $wrong (printf "%s: the name %s is that of a volume of the chart's own: choose another." $volumesAt .name) -}}
{{- else if has .name $names -}}
{{- $wrong = append $wrong (printf "%s: two volumes have the name %s: choose another for one." $volumesAt .name) -}}
{{- end -}}
{{- if ne (len .) 2 -}}
{{- $wrong = append $wrong (printf "%s: the volume %s needs one source: secret, configMap, projected, csi, emptyDir or persistentVolumeClaim." $volumesAt .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $values.extraVolumeMounts -}}
{{- if not (has .name $names) -}}
{{- $wrong = append $wrong (printf "%s: %s mounts the volume %s, which is not in %s: add it." $mountsAt .mountPath .name $volumesAt) -}}
{{- end -}}
{{- if has (trimSuffix "/" .mountPath) $paths -}}
{{- $wrong = append $wrong (printf "%s: something else is mounted at %s: choose another mountPath." $mountsAt .mountPath) -}}
{{- end -}}
{{- $paths = append $paths (trimSuffix "/" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- uniq $wrong | toJson -}}
{{- end -}}
