-- DuckDB. DATASET is the dataset's directory, or s3://bucket/prefix after INSTALL httpfs; LOAD httpfs; CREATE SECRET ….
SET TimeZone = 'UTC';
CREATE OR REPLACE VIEW samples AS
    SELECT *, stack[-1] AS leaf
    FROM read_parquet('DATASET/samples/**/*.parquet', hive_partitioning = true, union_by_name = false);
CREATE OR REPLACE TABLE frames AS
    SELECT frame, any_value(name) AS name, any_value(kind) AS kind, any_value(tier) AS tier,
           any_value(module) AS module, any_value(file) AS file, any_value(line) AS line
    FROM read_parquet('DATASET/frames/**/*.parquet', hive_partitioning = true)
    GROUP BY frame;
CREATE OR REPLACE MACRO explode(list) AS unnest(list);
