{{- /* The database may not answer yet; a wrong setting (2) does not get better. */ -}}
{{- define "bae.migrateCommand" -}}
- /bin/sh
- -c
- |
  end=$(($(date +%s) + {{ .Values.migrations.timeout }}))
  while true; do
    baesrv migrate && exit 0
    code=$?
    [ "$code" != 2 ] && [ "$(date +%s)" -lt "$end" ] || exit "$code"
    sleep 1
  done
{{- end -}}
