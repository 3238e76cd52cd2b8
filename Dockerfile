# One image for all of Autotomy's processes: `docker build -t autotomy .`; the command says which one it is.
FROM python:3.11-slim
WORKDIR /opt/autotomy
COPY requirements.lock pyproject.toml README.md ./
RUN pip install --no-cache-dir --requirement requirements.lock
COPY . .
RUN pip install --no-cache-dir --no-deps --editable . \
 && useradd --create-home --uid 1000 autotomy \
 && mkdir -p /var/lib/autotomy /var/log/autotomy \
 && chown -R autotomy /var/lib/autotomy /var/log/autotomy
USER autotomy
ENTRYPOINT ["autotomy"]
CMD ["--help"]
