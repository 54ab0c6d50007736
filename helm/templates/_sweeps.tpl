{{- /* What sweeps and their executors are made of. Ports of Spark's driver and executors are fixed. */ -}}

{{- /* The names of the enabled sweeps' components by their commands, as JSON. */ -}}
{{- define "sediment.sweeps" -}}
{{- $enabled := dict -}}
{{- range $sweep, $component := dict "retention" "retention-sweep" "removal" "partition-removal-sweep" -}}
{{- if index $.Values.sweeps $sweep "enabled" -}}
{{- $enabled = set $enabled $sweep $component -}}
{{- end -}}
{{- end -}}
{{- toJson $enabled -}}
{{- end -}}

{{- /* "true" if Spark starts executors, else empty. */ -}}
{{- define "sediment.hasExecutors" -}}
{{- if and (int .Values.sweeps.executors.count) (include "sediment.sweeps" . | fromJson) -}}true{{- end -}}
{{- end -}}

{{- define "sediment.sweepEngine" -}}
{{- include "sediment.hasExecutors" . | eq "true" | ternary "spark" .Values.sweeps.engine -}}
{{- end -}}

{{- /* Spark's properties of the driver with executors, as JSON. Call with (dict "root" $ "component" of the sweep). */ -}}
{{- define "sediment.executorConf" -}}
{{- $executors := .root.Values.sweeps.executors -}}
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
      "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.options.sizeLimit" .root.Values.sweeps.scratchSizeLimit
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

{{- /* The options of a sweep that say what runs it. Call with (dict "root" $ "component" of the sweep). */ -}}
{{- define "sediment.engineOptions" -}}
{{- $sweeps := .root.Values.sweeps -}}
{{- $engine := include "sediment.sweepEngine" .root -}}
- --engine={{ $engine }}
{{- $conf := $sweeps.sparkConf }}
{{- if include "sediment.hasExecutors" .root }}
- --master=k8s://https://kubernetes.default.svc
{{- $conf = merge (deepCopy $conf) (include "sediment.executorConf" . | fromJson) }}
{{- else if eq $engine "spark" }}
- --master={{ $sweeps.master }}
{{- end }}
{{- if eq $engine "spark" }}
- --driver-memory={{ $sweeps.driverMemory }}
{{- range $property, $value := merge (deepCopy $conf) (dict "spark.jars.ivy" "/tmp/ivy") }}
- {{ printf "--conf=%s=%s" $property (include "sediment.text" $value) | quote }}
{{- end }}
{{- end }}
{{- with $sweeps.workDir }}
- --work-dir={{ . }}
{{- end }}
{{- end -}}

{{- /* Variables of Spark's driver. Call with the root. */ -}}
{{- define "sediment.driverEnv" -}}
{{- if eq .Values.sweeps.engine "auto" }}
# Only if the sweep chooses Spark.
- name: SPARK_DRIVER_MEMORY
  value: {{ .Values.sweeps.driverMemory }}
- name: MASTER
  value: {{ .Values.sweeps.master }}
{{- end }}
{{- if .Values.sweeps.sparkDefaultsSecret }}
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

{{- /* Files of a driver, of sweeps and of checks, as JSON: a list of maps with a name, a mountPath and a source. Call with a pod's context. */ -}}
{{- define "sediment.driverFiles" -}}
{{- $files := list -}}
{{- if .isDriver -}}
{{- if and (include "sediment.hasExecutors" .root) (eq .component "sweeps") -}}
{{- $name := include "sediment.name" (dict "root" .root "component" "sweep-executor") -}}
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

{{- define "sediment.wrongSweeps" -}}
{{- $wrong := list -}}
{{- with .Values.sweeps -}}
{{- $isRemote := and (regexMatch "^[a-z][a-z0-9+.-]*:/" .workDir) (not (hasPrefix "file:" .workDir)) -}}
{{- $path := trimPrefix "//" (trimPrefix "file:" .workDir) -}}
{{- $volumes := dict -}}
{{- $values := mergeOverwrite (deepCopy $.Values.defaults) (deepCopy .) -}}
{{- range $values.extraVolumes -}}{{- $volumes = set $volumes .name . -}}{{- end -}}
{{- $isMounted := "" -}}
{{- $isShared := "" -}}
{{- range $values.extraVolumeMounts -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" (trimSuffix "/" $path)) -}}
{{- $isMounted = not .readOnly -}}
{{- $isShared = and $isMounted (hasKey (get $volumes .name | default dict) "persistentVolumeClaim") -}}
{{- end -}}
{{- end -}}
{{- if include "sediment.hasExecutors" $ -}}
{{- if eq .engine "local" -}}
{{- $wrong = append $wrong "sweeps.engine is local and sweeps.executors.count is not 0: executors are Spark's; set sweeps.engine to auto or spark, or the count to 0." -}}
{{- end -}}
{{- if not .workDir -}}
{{- $wrong = append $wrong "sweeps.workDir is empty and sweeps.executors.count is not 0: give a URI that all executors can write to, such as s3a://BUCKET/PREFIX, or a path on a persistentVolumeClaim of sweeps.extraVolumes." -}}
{{- else if not (or $isRemote $isShared) -}}
{{- $wrong = append $wrong (printf "sweeps.workDir is %s, which every pod would have of its own: give a URI that all executors can write to, such as s3a://BUCKET/PREFIX, or a path on a persistentVolumeClaim of sweeps.extraVolumes that is not mounted read-only." .workDir) -}}
{{- end -}}
{{- if eq (include "sediment.serviceAccountName" (dict "root" $ "component" "sweeps" "values" $values)) "default" -}}
{{- $wrong = append $wrong "sweeps.executors.count is not 0, and the sweeps have the service account default, so that every pod could start pods: name another in sweeps.serviceAccount.name, or set sweeps.serviceAccount.create." -}}
{{- end -}}
{{- else if and $isRemote (ne .engine "spark") -}}
{{- $wrong = append $wrong (printf "sweeps.workDir is %s and sweeps.engine is %s: only Spark writes there; set sweeps.engine to spark." .workDir .engine) -}}
{{- else if and .workDir (not $isRemote) (not $isMounted) (ne $path "/tmp") (not (hasPrefix "/tmp/" $path)) -}}
{{- $wrong = append $wrong (printf "sweeps.workDir is %s, and the pods cannot write there: choose a path below /tmp or on a volume of sweeps.extraVolumes." .workDir) -}}
{{- end -}}
{{- if and .sparkConf (ne (include "sediment.sweepEngine" $) "spark") -}}
{{- $wrong = append $wrong (printf "sweeps.sparkConf has properties and sweeps.engine is %s: only Spark has them; set sweeps.engine to spark." .engine) -}}
{{- end -}}
{{- range $property := list "spark.master" "spark.driver.memory" -}}
{{- if hasKey $.Values.sweeps.sparkConf $property -}}
{{- $wrong = append $wrong (printf "sweeps.sparkConf has %s, which the chart sets itself: use sweeps.executors, sweeps.master and sweeps.driverMemory." $property) -}}
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
{{- $onSpark := dict
      "sweeps" (and (include "sediment.sweeps" . | fromJson) (ne .Values.sweeps.engine "local"))
      "checks" (and (or .Values.checks.reconcile.enabled .Values.checks.scrub.enabled) (eq .Values.checks.engine "spark")) -}}
{{- range $component, $isOnSpark := $onSpark -}}
{{- $own := index $.Values $component -}}
{{- $limit := dig "limits" "memory" "" (mergeOverwrite (deepCopy ($.Values.defaults.resources | default dict)) (deepCopy ($own.resources | default dict))) | default "" -}}
{{- $bytes := include "sediment.bytes" (dict "amount" $limit) | int64 -}}
{{- $least := add (include "sediment.bytes" (dict "amount" $own.driverMemory "java" true) | int64) 805306368 -}}
{{- if and $isOnSpark $limit (gt $bytes 0) (lt $bytes $least) -}}
{{- $wrong = append $wrong (printf "%s.resources.limits.memory is %s and %s.driverMemory is %s: Spark needs 768Mi beside its driver's heap, for Python; raise the limit, for example to 3Gi for 1g." $component $limit $component $own.driverMemory) -}}
{{- end -}}
{{- end -}}
{{- toJson $wrong -}}
{{- end -}}
