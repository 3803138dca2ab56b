# The image of the DaemonSet: node daemon, kubelet plugin and the hook that containers load.
#   make wheel
#   docker build -f deploy/images/node.Dockerfile -t cotenant/node:VERSION .
# The base decides the newest glibc that the hook may need; the wheel itself decides which one it does need.
FROM python:3.11-slim-bookworm AS build
COPY dist/cotenant-*.whl /wheel/
RUN python -m venv /opt/cotenant \
    && wheel=$(ls /wheel/cotenant-*.whl) \
    && /opt/cotenant/bin/pip install --no-cache-dir "${wheel}[kubernetes]" \
    && find /opt/cotenant -name __pycache__ -type d -prune -exec rm -rf {} + \
    && /opt/cotenant/bin/python -m compileall -q /opt/cotenant/lib

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="cotenant node" \
      org.opencontainers.image.description="Node daemon and kubelet plugin of cotenant" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/cotenant /opt/cotenant
ENV PATH=/opt/cotenant/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# The daemon reads the processes of all users, and the plugin writes to directories of the kubelet: both run as root.
USER 0:0
ENTRYPOINT ["cotenant"]
CMD ["node"]
