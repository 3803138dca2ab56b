{{/* Names and labels. */}}
{{- define "cotenant.name" -}}
{{- if contains "cotenant" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-cotenant" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "cotenant.selector" -}}
app.kubernetes.io/name: cotenant
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "cotenant.labels" -}}
{{ include "cotenant.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "cotenant.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* A container without rights: the controller and the webhook need none beyond their files. */}}
{{- define "cotenant.restricted" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cotenant.nonRoot" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Replicas on different nodes where possible, so that the loss of one node leaves the others. */}}
{{- define "cotenant.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "cotenant.selector" . | nindent 6 }}
{{- end }}

{{/* Whether the webhook maintains its own certificate. */}}
{{- define "cotenant.ownCertificate" -}}
{{- if not .Values.webhook.certificate.certManager }}true{{ end }}
{{- end }}

{{/* Whether claims may be used: the controller, the DeviceClass and the checks of claims are installed. */}}
{{- define "cotenant.claims" -}}
{{- if or (eq .Values.allocation "claim") (and (eq .Values.allocation "auto") (semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version)) }}true{{ end }}
{{- end }}

{{/* Stop where the cluster is too old for what is asked: a DRA driver there would never be called. */}}
{{- define "cotenant.check" -}}
{{- if and (eq .Values.allocation "claim") (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "allocation=claim needs Kubernetes 1.34 or newer, and this cluster is %s; set allocation=auto or allocation=device-plugin" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}

{{/* CEL: whether a pod or a pod template asks for a GPU of cotenant, by an annotation, a claim of ours or a resource. */}}
{{- define "cotenant.podAsks" -}}
{{- $pod := . -}}
(has({{ $pod }}.metadata) && has({{ $pod }}.metadata.annotations) && {{ $pod }}.metadata.annotations.exists(name, name.startsWith("cotenant.dev/")))
{{- printf " || (has(%s.metadata) && has(%s.metadata.labels) && %s.metadata.labels.exists(name, name.startsWith(\"cotenant.dev/\")))" $pod $pod $pod }}
{{- printf " || (has(%s.spec.schedulingGates) && %s.spec.schedulingGates.exists(gate, gate.name == \"cotenant.dev/round\"))" $pod $pod }}
{{- printf " || %s.spec.containers.exists(c, %s)" $pod (include "cotenant.containerAsks" .) }}
{{- printf " || (has(%s.spec.initContainers) && %s.spec.initContainers.exists(c, %s))" $pod $pod (include "cotenant.containerAsks" .) }}
{{- end }}

{{- define "cotenant.containerAsks" -}}
has(c.resources) && ((has(c.resources.limits) && c.resources.limits.exists(name, name.startsWith("nvidia.com/") || name == "cotenant.dev/gpu")) || (has(c.resources.requests) && c.resources.requests.exists(name, name.startsWith("nvidia.com/") || name == "cotenant.dev/gpu")))
{{- end }}

{{/* CEL: whether a claim has parameters of the driver, or a request for its class. */}}
{{- define "cotenant.claimAsks" -}}
{{- $spec := . -}}
(has({{ $spec }}.devices.config) && {{ $spec }}.devices.config.exists(c, has(c.opaque) && c.opaque.driver == "gpu.cotenant.dev"))
{{- printf " || (has(%s.devices.requests) && %s.devices.requests.exists(r, (has(r.exactly) && r.exactly.deviceClassName == \"gpu.cotenant.dev\") || (has(r.firstAvailable) && r.firstAvailable.exists(a, a.deviceClassName == \"gpu.cotenant.dev\"))))" $spec $spec }}
{{- end }}
