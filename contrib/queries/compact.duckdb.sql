-- Puts the files of a dataset together, one for each hour, in COMPACTED: run it for days that are over, then let queries and
-- `jitprof report` read that. The directory COMPACTED must be there. DuckDB.
SET preserve_insertion_order = false;
COPY (
    SELECT * FROM read_parquet('DATASET/samples/**/*.parquet', hive_partitioning = true) ORDER BY day, hour, service, host
) TO 'COMPACTED/samples' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day, hour), ROW_GROUP_SIZE 100000, OVERWRITE_OR_IGNORE);
COPY (
    SELECT DISTINCT ON (day, frame) * EXCLUDE (host) FROM read_parquet('DATASET/frames/**/*.parquet', hive_partitioning = true)
) TO 'COMPACTED/frames' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day), OVERWRITE_OR_IGNORE);
