{{- define "loopway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "loopway.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "loopway.selector" -}}
app.kubernetes.io/name: {{ include "loopway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "loopway.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
  "app.kubernetes.io/name" (include "loopway.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.commonLabels) $own) }}
{{- end }}

{{- define "loopway.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "loopway.hooksImage" -}}
{{- with .Values.hooks.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default "latest" }}{{ end }}
{{- end }}
{{- end }}

{{- define "loopway.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "loopway.fullname" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{/* The port that has /healthz, /readyz and /metrics, by name. */}}
{{- define "loopway.adminPort" -}}
{{ ternary "http" "admin" (kindIs "invalid" .Values.ports.admin) }}
{{- end }}

{{/* How long endpoints may take to forget a pod before it drains: a sixth of drainSeconds, between 3 and 15. */}}
{{- define "loopway.preStopSeconds" -}}
{{ min 15 (max 3 (div (int .Values.drainSeconds) 6)) }}
{{- end }}

{{/* preStop, the drain, ten seconds for last errors and the flush of telemetry, and five more. */}}
{{- define "loopway.graceSeconds" -}}
{{ add (include "loopway.preStopSeconds" .) (ceil .Values.drainSeconds) 15 }}
{{- end }}

{{- define "loopway.leastReplicas" -}}
{{- if .Values.autoscaling.enabled }}{{ .Values.autoscaling.minReplicas }}
{{- else if .Values.keda.enabled }}{{ .Values.keda.minReplicas }}
{{- else }}{{ .Values.replicaCount }}{{ end }}
{{- end }}

{{- define "loopway.hasHooks" -}}
{{- if or .Values.hooks.files .Values.hooks.existingConfigMap .Values.hooks.image.repository }}yes{{ end }}
{{- end }}

{{/* The configuration file. */}}
{{- define "loopway.config" -}}
{{- $server := dict "host" "0.0.0.0" "port" (int .Values.ports.http) "admin_port" .Values.ports.admin "drain_seconds" .Values.drainSeconds }}
{{- if not (kindIs "invalid" .Values.ports.admin) }}{{ $_ := set $server "admin_port" (int .Values.ports.admin) }}{{ end }}
{{- $config := deepCopy .Values.config }}
{{- $_ := set $config "server" (merge $server (default dict $config.server)) }}
{{- toYaml $config }}
{{- end }}
