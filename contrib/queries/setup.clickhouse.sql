-- ClickHouse, chDB. DATASET is the dataset's directory; for a bucket read with s3('https://…/**/*.parquet', Parquet).
SET session_timezone = 'UTC';
SET use_hive_partitioning = 0;
CREATE OR REPLACE VIEW samples AS
    SELECT *, stack[-1] AS leaf FROM file('DATASET/samples/**/*.parquet', Parquet);
CREATE OR REPLACE TABLE frames ENGINE = Memory AS
    SELECT frame, any_value(name) AS name, any_value(kind) AS kind, any_value(tier) AS tier,
           any_value(module) AS module, any_value(file) AS file, any_value(line) AS line
    FROM file('DATASET/frames/**/*.parquet', Parquet)
    GROUP BY frame;
CREATE OR REPLACE FUNCTION explode AS (list) -> arrayJoin(list);
