#!/usr/bin/env python3
"""Runs a query of this folder over a dataset and prints CSV: run.py [--engine duckdb|clickhouse|spark] DATASET QUERY.

Engines are packages of the registry: duckdb, chdb, pyspark (which needs Java 17). QUERY is a file's name without its
ending, such as top-functions; `--replace OLD=NEW` changes a service, a time or a version in it; the time that the query
took is said on standard error.
"""

import argparse
import csv
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


def statements(name, replaced):
    text = "\n".join(line for line in (HERE / name).read_text().splitlines() if not line.lstrip().startswith("--"))
    for old, new in replaced:
        text = text.replace(old, new)
    return [statement.strip() for statement in text.split(";\n") if statement.strip(" \n;")]


def query(name, engine):
    own = f"{name}.{engine}.sql"
    return own if (HERE / own).exists() else f"{name}.sql"


def duckdb(_):
    import duckdb

    connection = duckdb.connect()

    def run(statement):
        connection.execute(statement)
        columns = [column[0] for column in connection.description or []]
        return columns, connection.fetchall() if columns else []

    return run


def clickhouse(_):
    import io

    from chdb import session

    opened = session.Session()

    def run(statement):
        if statement.startswith(("SET", "CREATE")):
            opened.query(statement)
            return [], []
        rows = list(csv.reader(io.StringIO(str(opened.query(statement, "CSVWithNames")))))
        return (rows[0], rows[1:]) if rows else ([], [])

    return run


def spark(arguments):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(arguments.master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "8").config("spark.log.level", "ERROR")
    opened = builder.config("spark.driver.memory", "3g").getOrCreate()

    def run(statement):
        found = opened.sql(statement)
        return found.columns, [tuple(row) for row in found.collect()]

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["duckdb", "clickhouse", "spark"], default="duckdb")
    parser.add_argument("--master", default="local[2]", help="Spark's, such as local-cluster[2,1,2048]")
    parser.add_argument("--replace", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("dataset")
    parser.add_argument("query", nargs="+")
    arguments = parser.parse_args()
    replaced = [tuple(pair.split("=", 1)) for pair in arguments.replace]
    place = [("DATASET", arguments.dataset.rstrip("/"))]
    run = {"duckdb": duckdb, "clickhouse": clickhouse, "spark": spark}[arguments.engine](arguments)
    began = time.monotonic()
    for statement in statements(f"setup.{arguments.engine}.sql", place):
        run(statement)
    print(f"setup: {time.monotonic() - began:.1f} s", file=sys.stderr)
    writer = csv.writer(sys.stdout)
    for name in arguments.query:
        began = time.monotonic()
        for statement in statements(query(name, arguments.engine), place + replaced):
            columns, rows = run(statement.rstrip(";"))
        print(f"{name}: {time.monotonic() - began:.1f} s, {len(rows)} rows", file=sys.stderr)
        if len(arguments.query) > 1:
            writer.writerow([f"# {name}"])
        writer.writerow(columns)
        writer.writerows(rows)


main()
