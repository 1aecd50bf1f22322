#!/bin/sh
# Run by the image of PostgreSQL when it makes a new cluster: a database and a role for each server, and neither role
# may look into the other's database. Passwords stay out of arguments, which other processes could read.
set -eu

psql --set=ON_ERROR_STOP=1 --no-psqlrc --username="$POSTGRES_USER" --dbname=postgres <<'SQL'
\getenv prefect_password SOLRL_PREFECT_DB_PASSWORD
\getenv mlflow_password SOLRL_MLFLOW_DB_PASSWORD
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE DATABASE prefect OWNER prefect;
REVOKE ALL ON DATABASE prefect FROM PUBLIC;
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE mlflow OWNER mlflow;
REVOKE ALL ON DATABASE mlflow FROM PUBLIC;
SQL
