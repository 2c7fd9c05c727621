-- Spark. DATASET is the dataset's directory, or s3a://bucket/prefix.
SET spark.sql.session.timeZone = UTC;
CREATE OR REPLACE TEMPORARY VIEW samples AS
    SELECT *, element_at(stack, -1) AS leaf FROM parquet.`DATASET/samples`;
CREATE OR REPLACE TEMPORARY VIEW frames AS
    SELECT frame, any_value(name) AS name, any_value(kind) AS kind, any_value(tier) AS tier,
           any_value(module) AS module, any_value(file) AS file, any_value(line) AS line
    FROM parquet.`DATASET/frames`
    GROUP BY frame;
