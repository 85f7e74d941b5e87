{{/* breakloop if the release has that name, otherwise RELEASE-breakloop. */}}
{{- define "breakloop.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "breakloop.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "breakloop.labels" -}}
{{ include "breakloop.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The Secret with the state URL. */}}
{{- define "breakloop.secretName" -}}
{{- .Values.state.existingSecret | default (include "breakloop.name" .) }}
{{- end }}

{{/* The Service of the admin port. */}}
{{- define "breakloop.adminName" -}}
{{- printf "%s-admin" (include "breakloop.name" .) }}
{{- end }}

{{/* Host names of the admin port: the short and long names of its Service, and admin.hosts. */}}
{{- define "breakloop.adminHosts" -}}
{{- $name := include "breakloop.adminName" . }}
{{- $near := printf "%s.$(POD_NAMESPACE)" $name }}
{{- concat (list $name $near (printf "%s.svc" $near) (printf "%s.svc.cluster.local" $near)) .Values.admin.hosts | join "," }}
{{- end }}

{{/* The ConfigMap with the bundle; empty with another bundle source. */}}
{{- define "breakloop.policyConfigMap" -}}
{{- if not .Values.policySource }}
{{- .Values.existingPolicyConfigMap | default (printf "%s-policy" (include "breakloop.name" .)) }}
{{- end }}
{{- end }}

{{/* Reject invalid combinations before anything is installed. */}}
{{- define "breakloop.check" -}}
{{- if not (or .Values.state.url .Values.state.existingSecret) }}
{{- fail "state: set state.url (redis://...) or state.existingSecret; state.url=memory:// for a single replica" }}
{{- end }}
{{- if and .Values.state.url .Values.state.existingSecret }}
{{- fail "state: set state.url or state.existingSecret, not both" }}
{{- end }}
{{- if and .Values.secret .Values.state.existingSecret }}
{{- fail "secret: put it into the Secret that state.existingSecret names, under the key secret" }}
{{- end }}
{{- if .Values.admin.enabled }}
{{- if not (or .Values.admin.token .Values.state.existingSecret) }}
{{- fail "admin: set admin.token (openssl rand -hex 32), or admin.enabled=false" }}
{{- end }}
{{- if and .Values.admin.token .Values.state.existingSecret }}
{{- fail "admin: put the token into the Secret that state.existingSecret names, under the key admin-token" }}
{{- end }}
{{- end }}
{{- if and .Values.history.url (or .Values.history.existingSecret .Values.state.existingSecret) }}
{{- fail "history: put the URL into a Secret of yours: history.existingSecret, or the key history in state.existingSecret" }}
{{- end }}
{{- if and (hasPrefix "memory:" .Values.state.url) (or (gt (int .Values.replicaCount) 1) .Values.autoscaling.enabled) }}
{{- fail "state: several replicas share a Redis; memory:// is for replicaCount 1 without autoscaling" }}
{{- end }}
{{- if and (eq .Values.policySource "redis") (hasPrefix "memory:" .Values.state.url) }}
{{- fail "policySource: redis needs a Redis in state" }}
{{- end }}
{{- end }}
