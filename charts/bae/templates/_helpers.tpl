{{- define "bae.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Short enough for what is added to it. */ -}}
{{- define "bae.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "bae.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "bae.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "bae.selector" -}}
app.kubernetes.io/name: {{ include "bae.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "bae.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "bae.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "bae.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "bae.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "bae.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "bae.fullname" .) }}
{{- end -}}

{{- define "bae.sandboxNamespace" -}}
{{ .Values.sandbox.namespace | default (printf "%s-sandboxes" (include "bae.fullname" .)) }}
{{- end -}}

{{- define "bae.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "bae.secretVariable" -}}
valueFrom: {secretKeyRef: {name: {{ .root.Values.secret.name | quote }}, key: {{ .key | quote }}}}
{{- end -}}

{{- /* Where Postgres and Redis are. `migrate` reads the second too: without it, it would claim the database for itself alone. */ -}}
{{- define "bae.storesEnv" -}}
{{- if .Values.postgres.enabled }}
- name: POSTGRES_PASSWORD
  {{- include "bae.secretVariable" (dict "root" . "key" .Values.secret.postgresPassword) | nindent 2 }}
- name: BAE_DATABASE_URL
  value: postgres://bae:$(POSTGRES_PASSWORD)@{{ include "bae.fullname" . }}-postgres:5432/bae
{{- else }}
- name: BAE_DATABASE_URL
  {{- include "bae.secretVariable" (dict "root" . "key" .Values.secret.databaseUrl) | nindent 2 }}
{{- end }}
{{- if .Values.redis.enabled }}
- name: REDIS_PASSWORD
  {{- include "bae.secretVariable" (dict "root" . "key" .Values.secret.redisPassword) | nindent 2 }}
- name: BAE_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "bae.fullname" . }}-redis:6379
{{- else }}
- name: BAE_REDIS_URL
  {{- include "bae.secretVariable" (dict "root" . "key" .Values.secret.redisUrl) | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The text of a setting. Numbers of values are floating-point numbers, which must not become 1e+06. */ -}}
{{- define "bae.settingText" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else if kindIs "bool" . -}}
{{- ternary "1" "0" . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- define "bae.caMount" -}}
{{- if .Values.caSecretName }}
- {name: ca, mountPath: /etc/bae-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- define "bae.caVolume" -}}
{{- if .Values.caSecretName }}
- name: ca
  secret: {secretName: {{ .Values.caSecretName }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "bae.scheme" -}}
{{ ternary "HTTPS" "HTTP" (ne .Values.tls.secretName "") }}
{{- end -}}

{{- /* What values.schema.json cannot say. */ -}}
{{- define "bae.check" -}}
{{- $values := .Values -}}
{{- if not $values.secret.name -}}
{{- fail "secret.name is needed: an existing Secret with the admin key and the addresses of Postgres and Redis" -}}
{{- end -}}
{{- $least := add $values.drainDelay $values.shutdownTimeout 5 -}}
{{- if not (kindIs "invalid" $values.terminationGracePeriodSeconds) -}}
{{- if lt (int64 $values.terminationGracePeriodSeconds) $least -}}
{{- fail (printf "terminationGracePeriodSeconds must be at least %d: drainDelay + shutdownTimeout + 5" $least) -}}
{{- end -}}
{{- end -}}
{{- $set := dict "addr" "service.port" "admin_addr" "admin" "admin_allow_remote" "admin.enabled" "admin_key" "secret" "admin_key_file" "secret" "database_url" "secret.databaseUrl" "redis_url" "secret.redisUrl" "config" "config" "shutdown_timeout" "shutdownTimeout" "stream_keepalive" "streamKeepalive" "metrics_addr" "metrics" "tls_cert" "tls" "tls_key" "tls" "retention_days" "retentionDays" "sandbox_driver" "sandbox.driver" "sandbox_namespace" "sandbox.namespace" -}}
{{- range $name, $_ := $values.settings -}}
{{- with get $set $name -}}
{{- fail (printf "settings.%s is set by the value %s" $name .) -}}
{{- end -}}
{{- end -}}
{{- if and $values.autoscaling.enabled (gt (int64 $values.autoscaling.minReplicas) (int64 $values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and (eq $values.sandbox.driver "kubernetes") $values.sandbox.createNamespace (eq (include "bae.sandboxNamespace" .) .Release.Namespace) -}}
{{- fail "sandbox.namespace is the release's own: sandboxes need a namespace of their own" -}}
{{- end -}}
{{- $monitoring := or $values.metrics.serviceMonitor.enabled $values.metrics.rules.enabled $values.autoscaling.custom.enabled -}}
{{- if and $monitoring (not $values.metrics.enabled) -}}
{{- fail "metrics.enabled is needed for a ServiceMonitor, for alerts and for autoscaling.custom" -}}
{{- end -}}
{{- end -}}
