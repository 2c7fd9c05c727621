-- Folded stacks of any selection, with microseconds: what flamegraph programs read. ClickHouse.
WITH used AS (
    SELECT stack_id, any_value(stack) AS frames_of, SUM(cpu_ns) AS cpu
    FROM samples
    WHERE service = 'shop.service' AND version = '2.0'
      AND time >= TIMESTAMP '2026-11-21 12:00:00' AND time < TIMESTAMP '2026-11-21 13:00:00'
    GROUP BY stack_id
), framed AS (
    SELECT stack_id, cpu, frame, place FROM used ARRAY JOIN frames_of AS frame, arrayEnumerate(frames_of) AS place
), lines AS (
    SELECT framed.stack_id AS stack_id, any_value(framed.cpu) AS stack_cpu,
           arrayStringConcat(arrayMap(each -> each.2, arraySort(groupArray((framed.place, replaceAll(frames.name, ';', ':'))))), ';')
               AS line
    FROM framed JOIN frames ON frames.frame = framed.frame
    GROUP BY framed.stack_id
)
SELECT line, toInt64(round(SUM(stack_cpu) / 1000)) AS cpu_us FROM lines GROUP BY line ORDER BY cpu_us DESC, line
