# The image of the placement controller and of the admission webhook.
#   make wheel
#   docker build -f deploy/images/controller.Dockerfile -t cotenant/controller:VERSION .
FROM python:3.11-slim-bookworm AS build
COPY dist/cotenant-*.whl /wheel/
RUN python -m venv /opt/cotenant \
    && wheel=$(ls /wheel/cotenant-*.whl) \
    && /opt/cotenant/bin/pip install --no-cache-dir "${wheel}[kubernetes]" \
    && find /opt/cotenant -name __pycache__ -type d -prune -exec rm -rf {} + \
    && /opt/cotenant/bin/python -m compileall -q /opt/cotenant/lib

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="cotenant controller" \
      org.opencontainers.image.description="Placement controller and admission webhook of cotenant" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/cotenant /opt/cotenant
ENV PATH=/opt/cotenant/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Neither needs a right on its machine, nor a file of its own.
USER 65532:65532
ENTRYPOINT ["cotenant"]
CMD ["kubernetes", "controller"]
