#!/bin/sh
# Creates Temporal's two databases and brings their schemas up to date (the password comes from SQL_PASSWORD).
# Updating comes first: on a database that has a schema it is all there is to do, and setting one up would reset its version.
set -eu
tool() {
    temporal-sql-tool --plugin postgres12 --ep postgresql -p 5432 -u temporal --db "$@"
}
for database in temporal temporal_visibility; do
    case "$database" in
        temporal) versions=/etc/temporal/schema/postgresql/v12/temporal/versioned ;;
        *) versions=/etc/temporal/schema/postgresql/v12/visibility/versioned ;;
    esac
    tool "$database" create || echo "database $database is there already"
    if ! tool "$database" update-schema -d "$versions"; then
        tool "$database" setup-schema -v 0.0
        tool "$database" update-schema -d "$versions"
    fi
done
