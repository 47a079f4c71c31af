# One image, two commands: `serve --api-only` (API) and `worker`.  With no settings at all,
# `docker run -p 127.0.0.1:8080:8080 IMAGE` is the embedded service on one volume.
# It listens on every address of the container, so it asks for API keys: at the first start it makes
# one, `docker exec CONTAINER cat /var/lib/tilewright/first-key`.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY tilewright tilewright
COPY service service
COPY worker worker
COPY migrations migrations
RUN python -m venv /app && /app/bin/pip install --no-cache-dir '.[s3,otel]'

# The documentation, with what makes it: of this stage only the pages go on.
FROM build AS guide
COPY docs docs
COPY benchmarks/VALIDATION.md benchmarks/PEERS.md benchmarks/
RUN /app/bin/pip install --no-cache-dir '.[docs]' \
    && /app/bin/sphinx-build -W -d /tmp/doctrees docs /guide

FROM python:3.12-slim
# The C compiler is part of the product: verification builds and runs the generated kernels.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /var/lib/tilewright tilewright
COPY --from=build /app /app
COPY --from=guide /guide /guide
ENV PATH=/app/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    TILEWRIGHT_HOST=0.0.0.0 \
    TILEWRIGHT_PORT=8080 \
    TILEWRIGHT_GUIDE_DIR=/guide \
    TILEWRIGHT_DATA_DIR=/var/lib/tilewright
USER 10001
VOLUME /var/lib/tilewright
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["tilewright"]
CMD ["serve"]
