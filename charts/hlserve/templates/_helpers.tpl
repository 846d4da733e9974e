{{/* Names, labels and the parts that pods share. Every name begins with the release's: operator and pools look for them so. */}}

{{/* Labels that select the pods of a component; NetworkPolicies of pools and the operator select by them too: (list $ "router"). */}}
{{- define "hlserve.selector" -}}
app.kubernetes.io/name: hlserve
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Metadata of an object of a component, with the end of its name: (list $ "router" "router"). */}}
{{- define "hlserve.metadata" -}}
{{- $root := index . 0 -}}
name: {{ $root.Release.Name }}-{{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "hlserve.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ $root.Release.Service }}
  app.kubernetes.io/part-of: hlserve
  helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image's full name: (list $ .Values.router.image). */}}
{{- define "hlserve.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $tag := $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion -}}
{{ $root.Values.image.registry }}/{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end }}
{{- end }}

{{/* Metadata of the pods of a component: (list $ "router" .Values.router). */}}
{{- define "hlserve.podMetadata" -}}
{{- $component := index . 2 -}}
labels:
  {{- include "hlserve.selector" . | nindent 2 }}
  {{- with $component.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $component.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What the pods of every component have in common. No user: the images name a numeric one, and some clusters give their own.
Service links are off: a Service's name must not become a setting. */}}
{{- define "hlserve.podSpec" -}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "hlserve.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "hlserve.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where the pods of a component may run: (list $ "router" .Values.router). */}}
{{- define "hlserve.placement" -}}
{{- $root := index . 0 -}}
{{- $component := index . 2 -}}
{{- $selector := include "hlserve.selector" . | fromYaml -}}
{{- with $component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $component.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- merge (dict "labelSelector" (dict "matchLabels" $selector)) . | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
affinity:
  {{- if $component.affinity }}
  {{- toYaml $component.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- toYaml $selector | nindent 14 }}
  {{- end }}
{{- end }}

{{/* Settings as environment variables: (list "HLSERVE_ROUTER_" .Values.router.settings). Numbers go through JSON, because a template
would write large ones with an exponent. */}}
{{- define "hlserve.settings" -}}
{{- $prefix := index . 0 -}}
{{- range $name, $value := index . 1 }}
- name: {{ $prefix }}{{ $name | snakecase | upper }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end }}

{{/* Name of the Secret with the admin token. */}}
{{- define "hlserve.adminToken" -}}
{{ .Values.adminToken.existingSecret | default (printf "%s-admin-token" .Release.Name) }}
{{- end }}

{{/* Name of the Secret with Valkey's password. */}}
{{- define "hlserve.valkeyPassword" -}}
{{ .Values.valkey.existingSecret | default (printf "%s-valkey" .Release.Name) }}
{{- end }}

{{/* Where routers share limits; empty: nowhere. */}}
{{- define "hlserve.limitsStore" -}}
{{- if .Values.valkey.enabled -}}
valkey://{{ .Release.Name }}-valkey.{{ .Release.Namespace }}.svc:6379/0
{{- else -}}
{{ .Values.limits.store }}
{{- end -}}
{{- end }}

{{/* The Secret and key of the store's password, as JSON; {} if it has none. */}}
{{- define "hlserve.limitsPassword" -}}
{{- if .Values.valkey.enabled -}}
{{ dict "name" (include "hlserve.valkeyPassword" .) "key" "password" | toJson }}
{{- else if .Values.limits.passwordSecret.name -}}
{{ .Values.limits.passwordSecret | toJson }}
{{- else -}}
{}
{{- end -}}
{{- end }}

{{/* A value that is made once: what the Secret holds already, else a new one: (list $ "<name>" "<key>"). */}}
{{- define "hlserve.madeOnce" -}}
{{- $root := index . 0 -}}
{{- $stored := lookup "v1" "Secret" $root.Release.Namespace (index . 1) -}}
{{- dig "data" (index . 2) (randAlphaNum 43 | b64enc) ($stored | default dict) -}}
{{- end }}

{{/* "yes" if an object of a kind is wanted: (list $ "Auto" "monitoring.coreos.com/v1/PodMonitor"). */}}
{{- define "hlserve.wanted" -}}
{{- $mode := index . 1 -}}
{{- if or (eq $mode "Always") (and (eq $mode "Auto") ((index . 0).Capabilities.APIVersions.Has (index . 2))) -}}yes{{- end -}}
{{- end }}

{{/* Peers of a NetworkPolicy for who scrapes metrics. */}}
{{- define "hlserve.monitoringPeer" -}}
{{- with .Values.monitoring.namespaceSelector.matchLabels }}
- namespaceSelector:
    matchLabels:
      {{- toYaml . | nindent 6 }}
{{- end }}
{{- end }}
