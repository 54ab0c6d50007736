{{- /* What sweeps, checks and their executors are made of. Ports of Spark's driver and executors are fixed. */ -}}
{{- /* A group is "sweeps" or "checks"; if nothing else is said, call with (dict "root" $ "group" "sweeps"). */ -}}

{{- /* The enabled jobs of a group by their commands, as JSON: the names of their components. */ -}}
{{- define "sediment.drivers" -}}
{{- $jobs := eq .group "sweeps" | ternary (dict "retention" "retention-sweep" "removal" "partition-removal-sweep") (dict "reconcile" "reconcile" "scrub" "scrub") -}}
{{- $values := index .root.Values .group -}}
{{- $enabled := dict -}}
{{- range $job, $component := $jobs -}}
{{- if index $values $job "enabled" -}}{{- $enabled = set $enabled $job $component -}}{{- end -}}
{{- end -}}
{{- toJson $enabled -}}
{{- end -}}

{{- /* The component of a group's executors: sweep-executor. */ -}}
{{- define "sediment.executor" -}}
{{- printf "%s-executor" (trimSuffix "s" .group) -}}
{{- end -}}

{{- /* The group of a driver or an executor, else empty. Call with (dict "root" $ "component" "reconcile"). */ -}}
{{- define "sediment.group" -}}
{{- $component := .component -}}
{{- range $group := list "sweeps" "checks" -}}
{{- $own := dict "root" $.root "group" $group -}}
{{- if has $component (append (include "sediment.drivers" $own | fromJson | values) (include "sediment.executor" $own)) -}}{{- $group -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* "true" if Spark starts executors, else empty. */ -}}
{{- define "sediment.hasExecutors" -}}
{{- if and (int (index .root.Values .group "executors" "count")) (include "sediment.drivers" . | fromJson) -}}true{{- end -}}
{{- end -}}

{{- define "sediment.engine" -}}
{{- include "sediment.hasExecutors" . | eq "true" | ternary "spark" (index .root.Values .group "engine") -}}
{{- end -}}

{{- /* Spark's properties of the driver with executors, as JSON. With the driver's "component". */ -}}
{{- define "sediment.executorConf" -}}
{{- $own := index .root.Values .group -}}
{{- $executors := $own.executors -}}
{{- $image := .root.Values.sparkImage -}}
{{- $conf := dict
      "spark.kubernetes.namespace" .root.Release.Namespace
      "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
      "spark.kubernetes.executor.podNamePrefix" "$(JOB_NAME)"
      "spark.kubernetes.executor.podTemplateFile" "/etc/sediment/executors/pod.yaml"
      "spark.kubernetes.executor.podTemplateContainerName" "executor"
      "spark.kubernetes.container.image" (include "sediment.image" (dict "root" .root "image" $image))
      "spark.kubernetes.container.image.pullPolicy" $image.pullPolicy
      "spark.kubernetes.executor.request.cores" (include "sediment.text" (dig "requests" "cpu" "500m" $executors.resources))
      "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.mount.path" "/var/data"
      "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.options.sizeLimit" $own.scratchSizeLimit
      "spark.executor.instances" (int $executors.count)
      "spark.executor.cores" (int $executors.cores)
      "spark.executor.memory" $executors.memory
      "spark.executor.memoryOverhead" $executors.memoryOverhead
      "spark.driver.host" (printf "$(JOB_NAME)-0.%s.%s.svc" (include "sediment.name" .) .root.Release.Namespace)
      "spark.driver.bindAddress" .root.Values.listenHost
      "spark.driver.port" 7078
      "spark.driver.blockManager.port" 7079
      "spark.blockManager.port" 7079 -}}
{{- /* By its name, not by the address that it listens on. */ -}}
{{- $conf = set $conf "spark.kubernetes.executor.useDriverPodIP" false -}}
{{- /* So that the driver needs rights on pods only. */ -}}
{{- range list "executor.disableConfigMap=true" "driver.service.deleteOnTermination=false" "driver.ownPersistentVolumeClaim=false" "driver.reusePersistentVolumeClaim=false" -}}
{{- $pair := splitList "=" . -}}
{{- $conf = set $conf (printf "spark.kubernetes.%s" (first $pair)) (last $pair) -}}
{{- end -}}
{{- /* A client of a driver can run code in it: a secret that Spark makes for each run keeps other clients out. */ -}}
{{- range list "spark.authenticate" "spark.network.crypto.enabled" -}}
{{- $conf = set $conf . true -}}
{{- end -}}
{{- toJson (set $conf "spark.ui.enabled" false) -}}
{{- end -}}

{{- /* The options that say how Spark runs a job; none if it does not. With the driver's "component". */ -}}
{{- define "sediment.sparkOptions" -}}
{{- $own := index .root.Values .group -}}
{{- if include "sediment.engine" . | eq "spark" }}
{{- $conf := $own.sparkConf }}
{{- if include "sediment.hasExecutors" . }}
- --master=k8s://https://kubernetes.default.svc
{{- $conf = merge (deepCopy $conf) (include "sediment.executorConf" . | fromJson) }}
{{- else }}
- --master={{ $own.master }}
{{- end }}
- --driver-memory={{ $own.driverMemory }}
{{- range $property, $value := merge (deepCopy $conf) (dict "spark.jars.ivy" "/tmp/ivy") }}
- {{ printf "--conf=%s=%s" $property (include "sediment.text" $value) | quote }}
{{- end }}
{{- end }}
{{- with $own.workDir }}
- --work-dir={{ . }}
{{- end }}
{{- end -}}

{{- /* Variables of Spark's driver. */ -}}
{{- define "sediment.driverEnv" -}}
{{- $own := index .root.Values .group -}}
{{- if eq $own.engine "auto" }}
# Only if the sweep chooses Spark.
- name: SPARK_DRIVER_MEMORY
  value: {{ $own.driverMemory }}
- name: MASTER
  value: {{ $own.master }}
{{- end }}
{{- if $own.sparkDefaultsSecret }}
- name: SPARK_CONF_DIR
  value: /etc/sediment/spark
{{- end }}
{{- if include "sediment.hasExecutors" . }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: JOB_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['batch.kubernetes.io/job-name']
{{- end }}
{{- end -}}

{{- /* Files of a driver, as JSON: a list of maps with a name, a mountPath and a source. Call with a pod's context. */ -}}
{{- define "sediment.driverFiles" -}}
{{- $files := list -}}
{{- if .isDriver -}}
{{- if include "sediment.hasExecutors" . -}}
{{- $name := include "sediment.name" (dict "root" .root "component" (include "sediment.executor" .)) -}}
{{- $files = append $files (dict "name" "executors" "mountPath" "/etc/sediment/executors" "source" (dict "configMap" (dict "name" $name))) -}}
{{- end -}}
{{- with .values.sparkDefaultsSecret -}}
{{- $items := list (dict "key" "spark-defaults.conf" "path" "spark-defaults.conf") -}}
{{- $files = append $files (dict "name" "spark-defaults" "mountPath" "/etc/sediment/spark" "secretName" . "items" $items) -}}
{{- end -}}
{{- end -}}
{{- toJson $files -}}
{{- end -}}

{{- define "sediment.driverVolumes" -}}
{{- range include "sediment.driverFiles" . | fromJsonArray }}
- name: {{ .name }}
  {{- if .source }}
  {{- toYaml .source | nindent 2 }}
  {{- else }}
  secret:
    secretName: {{ .secretName }}
    defaultMode: {{ include "sediment.secretMode" $ }}
    items:
      {{- toYaml .items | nindent 6 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "sediment.driverVolumeMounts" -}}
{{- range include "sediment.driverFiles" . | fromJsonArray }}
- name: {{ .name }}
  mountPath: {{ .mountPath }}
  readOnly: true
{{- end }}
{{- end -}}

{{- /* Whose a path or a URI is, as JSON: not of this machine, of all pods, writable. Call with (dict "values" of the group with the defaults "path" it). */ -}}
{{- define "sediment.place" -}}
{{- $volumes := dict -}}
{{- $path := trimPrefix "//" (trimPrefix "file:" .path) -}}
{{- $isRemote := regexMatch "^[a-z][a-z0-9+.-]*:/" $path -}}
{{- $place := dict "isRemote" $isRemote "isShared" $isRemote "isWritable" (or $isRemote (hasPrefix "/tmp/" (printf "%s/" $path))) -}}
{{- range .values.extraVolumes -}}{{- $volumes = set $volumes .name . -}}{{- end -}}
{{- range .values.extraVolumeMounts -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" (trimSuffix "/" $path)) -}}
{{- $isClaim := hasKey (get $volumes .name | default dict) "persistentVolumeClaim" -}}
{{- $place = dict "isRemote" false "isShared" $isClaim "isWritable" (not .readOnly) -}}
{{- end -}}
{{- end -}}
{{- toJson $place -}}
{{- end -}}

{{- define "sediment.wrongSpark" -}}
{{- $wrong := list -}}
{{- range $group := list "sweeps" "checks" -}}
{{- $own := dict "root" $ "group" $group -}}
{{- with index $.Values $group -}}
{{- $values := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy .) -}}
{{- $place := include "sediment.place" (dict "values" $values "path" .workDir) | fromJson -}}
{{- if include "sediment.hasExecutors" $own -}}
{{- $give := printf "give a URI that all executors can write to, such as s3a://BUCKET/PREFIX, or a path on a persistentVolumeClaim of %s.extraVolumes" $group -}}
{{- if eq .engine "local" -}}
{{- $wrong = append $wrong (printf "%s.engine is local and %s.executors.count is not 0: executors are Spark's; set %s.engine to spark, or the count to 0." $group $group $group) -}}
{{- end -}}
{{- if not .workDir -}}
{{- $wrong = append $wrong (printf "%s.workDir is empty and %s.executors.count is not 0: %s." $group $group $give) -}}
{{- else if not (and $place.isShared $place.isWritable) -}}
{{- $wrong = append $wrong (printf "%s.workDir is %s, which every pod would have of its own: %s that is not mounted read-only." $group .workDir $give) -}}
{{- end -}}
{{- if eq (include "sediment.serviceAccountName" (dict "root" $ "component" $group "values" $values)) "default" -}}
{{- $wrong = append $wrong (printf "%s.executors.count is not 0, and the %s have the service account default, so that every pod could start pods: name another in %s.serviceAccount.name, or set %s.serviceAccount.create." $group $group $group $group) -}}
{{- end -}}
{{- with and (dig "reconcile" "enabled" false .) (dig "reconcile" "inventory" "" .) -}}
{{- if not (include "sediment.place" (dict "values" $values "path" .) | fromJson).isShared -}}
{{- $wrong = append $wrong (printf "checks.reconcile.inventory is %s, which every pod would have of its own: give a URI that all executors can read, or a path on a persistentVolumeClaim of checks.extraVolumes." .) -}}
{{- end -}}
{{- end -}}
{{- else if and .workDir (ne .engine "spark") (or $place.isRemote (eq $group "checks")) -}}
{{- $wrong = append $wrong (printf "%s.workDir is %s and %s.engine is %s: only Spark writes there; set %s.engine to spark." $group .workDir $group .engine $group) -}}
{{- else if and .workDir (not $place.isWritable) -}}
{{- $wrong = append $wrong (printf "%s.workDir is %s, and the pods cannot write there: choose a path below /tmp or on a volume of %s.extraVolumes." $group .workDir $group) -}}
{{- end -}}
{{- if and .sparkConf (ne (include "sediment.engine" $own) "spark") -}}
{{- $wrong = append $wrong (printf "%s.sparkConf has properties and %s.engine is %s: only Spark has them; set %s.engine to spark." $group $group .engine $group) -}}
{{- end -}}
{{- range $property := list "spark.master" "spark.driver.memory" -}}
{{- if hasKey (index $.Values $group "sparkConf") $property -}}
{{- $wrong = append $wrong (printf "%s.sparkConf has %s, which the chart sets itself: use %s.executors, %s.master and %s.driverMemory." $group $property $group $group $group) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}

{{- /* An amount of memory in bytes: Kubernetes' 3Gi, or Java's 1g with (dict "java" true). */ -}}
{{- define "sediment.bytes" -}}
{{- $number := regexFind "^[0-9.]+" .amount | default "0" -}}
{{- $suffix := trimPrefix $number .amount -}}
{{- $sizes := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $sizes = .java | default false | ternary (dict "m" 1048576 "g" 1073741824) $sizes -}}
{{- mulf $number (get $sizes $suffix | default 0) | int64 -}}
{{- end -}}

{{- /* Pods that run Spark need their driver's heap, and room for the rest of Java and for Python. */ -}}
{{- define "sediment.wrongMemory" -}}
{{- $wrong := list -}}
{{- range $component := list "checks" "sweeps" -}}
{{- $own := index $.Values $component -}}
{{- $isOnSpark := and (ne $own.engine "local") (include "sediment.drivers" (dict "root" $ "group" $component) | fromJson) -}}
{{- $limit := dig "limits" "memory" "" (mergeOverwrite (deepCopy ($.Values.defaults.resources | default dict)) (deepCopy ($own.resources | default dict))) | default "" -}}
{{- $bytes := include "sediment.bytes" (dict "amount" $limit) | int64 -}}
{{- $least := add (include "sediment.bytes" (dict "amount" $own.driverMemory "java" true) | int64) 805306368 -}}
{{- if and $isOnSpark $limit (gt $bytes 0) (lt $bytes $least) -}}
{{- $wrong = append $wrong (printf "%s.resources.limits.memory is %s and %s.driverMemory is %s: Spark needs 768Mi beside its driver's heap, for Python; raise the limit, for example to 3Gi for 1g." $component $limit $component $own.driverMemory) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
