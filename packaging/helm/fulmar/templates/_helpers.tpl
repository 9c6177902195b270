{{- define "fulmar.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "fulmar.fullname" -}}
{{- $name := include "fulmar.name" . }}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "fulmar.selector" -}}
app.kubernetes.io/name: {{ include "fulmar.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Those of brokers, of NATS and of the Job differ in the component. */ -}}
{{- define "fulmar.labels" -}}
{{ include "fulmar.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "fulmar.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "fulmar.clustered" -}}{{ if eq .Values.mode "cluster" }}yes{{ end }}{{- end }}
{{- define "fulmar.ownNats" -}}{{ if and (eq .Values.mode "cluster") .Values.nats.enabled }}yes{{ end }}{{- end }}
{{- /* How brokers are replaced. Nodes that stand by are never ready, so a rolling update would wait for ever behind the first. */ -}}
{{- define "fulmar.updates" -}}{{ ternary "OnDelete" "RollingUpdate" (eq .Values.mode "cluster") }}{{- end }}
{{- define "fulmar.natsTls" -}}
{{- if include "fulmar.ownNats" . }}{{ default (printf "%s-nats" (include "fulmar.fullname" .)) .Values.nats.tlsSecret }}
{{- else }}{{ .Values.nats.existing.tlsSecret.name }}{{ end }}
{{- end }}
{{- define "fulmar.natsHost" -}}
{{ include "fulmar.fullname" .context }}-nats-{{ .index }}.{{ include "fulmar.fullname" .context }}-nats.{{ .context.Release.Namespace }}.svc
{{- end }}

{{- /* The StatefulSet of brokers that Kubernetes has; empty at an installation, and without Kubernetes (`helm template`). */ -}}
{{- define "fulmar.installed" -}}
{{- if .Release.IsUpgrade }}{{ default dict (lookup "apps/v1" "StatefulSet" .Release.Namespace (include "fulmar.fullname" .)) | toJson }}{{ else }}{}{{ end }}
{{- end }}

{{- /* Whether the cluster has been created: an earlier upgrade has seen it, a broker is ready, or the Job has succeeded.
Where it is unknown, the Job runs: in a cluster that is there, `fulmar cluster init` changes nothing. */ -}}
{{- define "fulmar.created" -}}
{{- $brokers := include "fulmar.installed" . | fromJson }}
{{- if or (dig "metadata" "annotations" "fulmar/cluster-created" "" $brokers) (dig "status" "readyReplicas" 0 $brokers) -}}
yes
{{- else if .Release.IsUpgrade }}
{{- range (lookup "batch/v1" "Job" .Release.Namespace "").items }}
{{- if and (eq "init" (dig "labels" "app.kubernetes.io/component" "" .metadata)) (eq $.Release.Name (dig "labels" "app.kubernetes.io/instance" "" .metadata)) (dig "status" "succeeded" 0 .) }}yes{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The name of the Job that creates the cluster; empty: there is none. An upgrade has another Job, because Kubernetes does
not let the Pod of one change. */ -}}
{{- define "fulmar.initJob" -}}
{{- if and (include "fulmar.clustered" .) .Values.cluster.init (not (include "fulmar.created" .)) -}}
{{ include "fulmar.fullname" . }}-init{{ if .Release.IsUpgrade }}-{{ .Release.Revision }}{{ end }}
{{- end }}
{{- end }}

{{- /* Bytes of an amount in Kubernetes' or NATS' notation: of both, K is 1000, Ki 1024; NATS' KB is 1024 too. */ -}}
{{- define "fulmar.bytes" -}}
{{- $unit := regexFind "[A-Za-z].*" . }}
{{- $power := index (dict "" 0 "k" 1 "m" 2 "g" 3 "t" 4) (lower $unit | trunc 1) }}
{{- $bytes := regexFind "^[0-9.]+" . | float64 }}
{{- range until $power }}{{ $bytes = mulf $bytes (ternary 1000 1024 (eq (len $unit) 1)) }}{{ end }}
{{- printf "%.0f" $bytes }}
{{- end }}

{{- /* In bytes: nine tenths of the volume, because NATS counts neither indexes nor what the file system needs. */ -}}
{{- define "fulmar.maxFileStore" -}}
{{- $size := include "fulmar.bytes" .Values.nats.persistence.size }}
{{- if .Values.nats.maxFileStore }}{{ include "fulmar.bytes" .Values.nats.maxFileStore }}
{{- else }}{{ div (mul 9 (int64 $size)) 10 }}{{ end }}
{{- end }}

{{- define "fulmar.natsConfig" -}}
server_name: $POD_NAME
listen: "0.0.0.0:4222"
# Health and statistics only.
http: "0.0.0.0:8222"
pid_file: "/tmp/nats.pid"
# Whoever has a certificate of this CA is a node or a server.
tls {
  cert_file: "/etc/nats/tls/tls.crt"
  key_file: "/etc/nats/tls/tls.key"
  ca_file: "/etc/nats/tls/ca.crt"
  verify: true
}
# An fsync before each acknowledgement: without it, a power cut could lose what Fulmar has acknowledged.
jetstream {
  store_dir: "/data"
  sync_interval: always
  max_memory_store: 64Mi
  max_file_store: {{ include "fulmar.maxFileStore" . }}
}
cluster {
  name: {{ include "fulmar.fullname" . }}-nats
  listen: "0.0.0.0:6222"
  no_advertise: true
  tls {
    cert_file: "/etc/nats/tls/tls.crt"
    key_file: "/etc/nats/tls/tls.key"
    ca_file: "/etc/nats/tls/ca.crt"
    verify: true
  }
  routes: [
    {{- range until 3 }}
    "tls://{{ include "fulmar.natsHost" (dict "context" $ "index" .) }}:6222"
    {{- end }}
  ]
}
{{- end }}

{{- /* The ports of a protocol as a JSON object: names, and numbers. */ -}}
{{- define "fulmar.ports" -}}
{{- $names := ternary (list "mqtts" "https" "wss" "mqtt" "ws") (list "quic" "https" "coaps" "coap" "mqtt_sn") (eq .protocol "TCP") }}
{{- $ports := dict }}
{{- range $name := $names }}{{ with index $.context.Values.listeners $name }}{{ $_ := set $ports ($name | replace "_" "-") . }}{{ end }}{{ end }}
{{- toJson $ports }}
{{- end }}

{{- /* A value of TOML; strings, numbers and Booleans are as in JSON (raw: with &, not \u0026). */ -}}
{{- define "fulmar.toml" -}}
{{- if kindIs "map" . }}{ {{- range $at, $key := keys . | sortAlpha }}{{ if $at }},{{ end }} {{ $key | toJson }} = {{ include "fulmar.toml" (index $ $key) }}{{ end }} }
{{- else if kindIs "slice" . }}[{{ range $at, $value := . }}{{ if $at }}, {{ end }}{{ include "fulmar.toml" $value }}{{ end }}]
{{- else }}{{ toRawJson . }}{{ end }}
{{- end }}

{{- /* fulmar.toml: the chart's sections, with those of `config` over them. */ -}}
{{- define "fulmar.config" -}}
{{- $config := dict "server" (dict "data_dir" "/var/lib/fulmar") }}
{{- $listeners := dict "http" (list (ternary "0.0.0.0:14568" "127.0.0.1:14568" .Values.metrics.enabled)) "webtransport" list }}
{{- range $name, $port := .Values.listeners }}
{{- $all := list }}
{{- if $port }}{{ range $.Values.listenAddresses }}{{ $all = append $all (printf "%s:%d" . (int $port)) }}{{ end }}{{ end }}
{{- $_ := set $listeners $name $all }}
{{- end }}
{{- $_ := set $config "listeners" $listeners }}
{{- with .Values.tls.secretName }}{{ $_ := set $config "tls" (dict "cert" "/etc/fulmar/tls/tls.crt" "key" "/etc/fulmar/tls/tls.key") }}{{ end }}
{{- if ne .Values.tls.clientAuth "off" }}
{{- $_ := set $config "tls" (merge (default dict $config.tls) (dict "client_auth" .Values.tls.clientAuth "client_ca" (printf "/etc/fulmar/tls/%s" .Values.tls.clientCaKey))) }}
{{- end }}
{{- with .Values.auth.passwordSecret }}{{ if .name }}{{ $_ := set $config "auth" (dict "password_file" (printf "/etc/fulmar/users/%s" .key)) }}{{ end }}{{ end }}
{{- if include "fulmar.clustered" . }}
{{- $cluster := dict }}
{{- if .Values.nats.enabled }}
{{- $servers := list }}{{ $monitoring := list }}
{{- range until 3 }}
{{- $host := include "fulmar.natsHost" (dict "context" $ "index" .) }}
{{- $servers = append $servers (printf "tls://%s:4222" $host) }}
{{- $monitoring = append $monitoring (printf "http://%s:8222" $host) }}
{{- end }}
{{- $cluster = dict "servers" $servers "monitoring" $monitoring }}
{{- else }}
{{- $existing := .Values.nats.existing }}
{{- $cluster = dict "servers" $existing.servers "monitoring" $existing.monitoring }}
{{- if $existing.allowAnonymous }}{{ $_ := set $cluster "allow_anonymous" "always" }}{{ end }}
{{- with $existing.credentialsSecret }}{{ if .name }}{{ $_ := set $cluster "credentials_file" (printf "/etc/fulmar/nats-credentials/%s" .key) }}{{ end }}{{ end }}
{{- end }}
{{- if include "fulmar.natsTls" . }}
{{- $_ := set $cluster "ca_file" "/etc/fulmar/nats/ca.crt" }}
{{- if or .Values.nats.enabled .Values.nats.existing.tlsSecret.certificate }}
{{- $_ := set $cluster "cert" "/etc/fulmar/nats/tls.crt" }}{{ $_ := set $cluster "key" "/etc/fulmar/nats/tls.key" }}
{{- end }}
{{- end }}
{{- $_ := set $config "cluster" $cluster }}
{{- end }}
{{- $config = mergeOverwrite $config (deepCopy .Values.config) }}
{{- $tls := default dict $config.tls }}
{{- if not (or (include "fulmar.clustered" .) $tls.cert) }}
{{- $service := printf "%s.%s.svc" (include "fulmar.fullname" .) .Release.Namespace }}
{{- $udp := printf "%s-udp.%s.svc" (include "fulmar.fullname" .) .Release.Namespace }}
{{- $_ := set $config "tls" (merge (dict "names" (concat (list $service $udp) (default list $tls.names))) $tls) }}
{{- end }}
{{- range $section := keys $config | sortAlpha }}
[{{ $section }}]
{{- $keys := index $config $section }}
{{- range $key := keys $keys | sortAlpha }}
{{- if not (kindIs "invalid" (index $keys $key)) }}
{{ if regexMatch "^[A-Za-z0-9_-]+$" $key }}{{ $key }}{{ else }}{{ toJson $key }}{{ end }} = {{ include "fulmar.toml" (index $keys $key) }}
{{- end }}
{{- end }}
{{ end }}
{{- end }}

{{- /* What the schema cannot say: values that do not go together, each with what to do. */ -}}
{{- define "fulmar.check" -}}
{{- range $key := list "listeners" "cluster" }}
{{- if hasKey $.Values.config $key }}
{{- fail (printf "config.%s: the chart writes this section; use the values `listeners`, `cluster` and `nats`" $key) }}
{{- end }}
{{- end }}
{{- if hasKey (default dict .Values.config.server) "data_dir" }}{{ fail "config.server.data_dir: the data folder is the volume at /var/lib/fulmar; remove this key" }}{{ end }}
{{- $was := dig "spec" "updateStrategy" "type" "" (include "fulmar.installed" . | fromJson) }}
{{- if and $was (ne $was (include "fulmar.updates" .)) }}
{{- fail (printf "mode: this release is not of mode %s, and the data folder of a broker alone is not that of a node; install another release" .Values.mode) }}
{{- end }}
{{- $text := include "fulmar.config" . }}
{{- /* A key (a table of this name is a column of a sink), the user's part of an address, and its query. */ -}}
{{- $secrets := list "(?:^|[\\s{,])\"?password\"? = (?:[^\"{]|\"[^\"])" "://[^\\s\"/@:]*:[^\\s\"/@]+@" "(?i)[?&](?:p|pass|passwd|[a-z_-]*(?:password|token|secret|key))=[^\\s\"&]" }}
{{- if regexMatch (join "|" $secrets) $text }}
{{- fail "config: there is a password in it, and a ConfigMap is no place for one; put it into a Secret, and name that in extraEnv (FULMAR_UPSTREAM__PASSWORD, FULMAR_PLATFORM__DATABASE) or in extraVolumes with a key such as password_file" }}
{{- end }}
{{- if and (ne .Values.tls.clientAuth "off") (not .Values.tls.secretName) }}
{{- fail "tls.clientAuth needs tls.secretName: a Secret with tls.crt, tls.key and the clients' CA (tls.clientCaKey)" }}
{{- end }}
{{- $auth := default dict .Values.config.auth }}
{{- if and .Values.auth.passwordSecret.name (hasKey $auth "password_file") }}{{ fail "auth.passwordSecret and config.auth.password_file: set one of them" }}{{ end }}
{{- if include "fulmar.clustered" . }}
{{- if and (not .Values.tls.secretName) (or .Values.listeners.mqtts .Values.listeners.quic .Values.listeners.https .Values.listeners.wss .Values.listeners.coaps) (not (hasKey (default dict .Values.config.tls) "cert")) }}
{{- fail "mode cluster needs tls.secretName: the nodes show clients one certificate. Create it with cert-manager, or: kubectl create secret tls NAME --cert=FILE --key=FILE" }}
{{- end }}
{{- if not (or .Values.auth.passwordSecret.name $auth (ne .Values.tls.clientAuth "off")) }}
{{- fail "mode cluster needs users: set auth.passwordSecret.name (fulmar passwd NAME --file passwords; kubectl create secret generic NAME --from-file=passwords), tls.clientAuth or config.auth" }}
{{- end }}
{{- if and .Values.nats.enabled (gt (include "fulmar.maxFileStore" . | int64) (include "fulmar.bytes" .Values.nats.persistence.size | int64)) }}
{{- fail (printf "nats.maxFileStore is %s, more than the volume has (nats.persistence.size is %s): leave it empty for nine tenths of the volume" .Values.nats.maxFileStore .Values.nats.persistence.size) }}
{{- end }}
{{- if not .Values.nats.enabled }}
{{- $existing := .Values.nats.existing }}
{{- if not $existing.servers }}{{ fail "nats.enabled is false: set nats.existing.servers, such as {tls://nats-0.nats:4222}" }}{{ end }}
{{- if not (or $existing.credentialsSecret.name $existing.tlsSecret.certificate $existing.allowAnonymous) }}
{{- fail "nats.existing: set credentialsSecret.name, or tlsSecret.name and tlsSecret.certificate=true; without credentials, anyone who reaches NATS can read and change all that the cluster has. On a network you trust: nats.existing.allowAnonymous=true" }}
{{- end }}
{{- if and $existing.tlsSecret.certificate (not $existing.tlsSecret.name) }}{{ fail "nats.existing.tlsSecret.certificate needs tlsSecret.name" }}{{ end }}
{{- end }}
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.metrics.enabled (not .Values.networkPolicy.metricsFrom) }}
{{- fail "networkPolicy.metricsFrom: say who may reach the port of metrics, which lists all clients too and needs no login; all Pods: [{namespaceSelector: {}}]" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) }}{{ fail "metrics.serviceMonitor.enabled needs metrics.enabled=true, which opens the port" }}{{ end }}
{{- end }}

{{- define "fulmar.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "fulmar.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The same for a node and for the Job that creates the cluster. */ -}}
{{- define "fulmar.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if include "fulmar.clustered" . }}
- name: FULMAR_CLUSTER__NODE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: FULMAR_CLUSTER__ADDRESS
  value: $(POD_NAME).{{ include "fulmar.fullname" . }}-headless.{{ .Release.Namespace }}.svc
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fulmar.mounts" -}}
- {name: config, mountPath: /etc/fulmar/fulmar.toml, subPath: fulmar.toml, readOnly: true}
- {name: data, mountPath: /var/lib/fulmar}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/fulmar/tls, readOnly: true}
{{- end }}
{{- if .Values.auth.passwordSecret.name }}
- {name: users, mountPath: /etc/fulmar/users, readOnly: true}
{{- end }}
{{- if include "fulmar.clustered" . }}
{{- if include "fulmar.natsTls" . }}
- {name: nats, mountPath: /etc/fulmar/nats, readOnly: true}
{{- end }}
{{- if and (not .Values.nats.enabled) .Values.nats.existing.credentialsSecret.name }}
- {name: nats-credentials, mountPath: /etc/fulmar/nats-credentials, readOnly: true}
{{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Secrets are root's and readable by fsGroup: what the program accepts. */ -}}
{{- define "fulmar.volumes" -}}
- name: config
  configMap: {name: {{ include "fulmar.fullname" . }}}
- name: tmp
  emptyDir: {}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- with .Values.auth.passwordSecret.name }}
- name: users
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- if include "fulmar.clustered" . }}
{{- with include "fulmar.natsTls" . }}
- name: nats
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- if not .Values.nats.enabled }}
{{- with .Values.nats.existing.credentialsSecret.name }}
- name: nats-credentials
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fulmar.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .size }}}}
{{- end }}

{{- /* Where Pods of one component run. */ -}}
{{- define "fulmar.placement" -}}
{{- $values := .context.Values }}
topologySpreadConstraints:
{{- if $values.topologySpreadConstraints }}
{{ toYaml $values.topologySpreadConstraints | indent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "fulmar.selector" .context | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}
