-- Views over the tables of `gnatswarm ingest` or `gnatswarm compact`, for spark-sql, a notebook or a BI tool:
--     spark-sql -d out=/path/of/the/tables -i views.sql
-- Each row is there once: ingest has left out copies of files. Shard 63 is the gateway, which is connected to other servers.

CREATE OR REPLACE TEMPORARY VIEW subject_rows AS SELECT * FROM parquet.`${out}/subject`;

CREATE OR REPLACE TEMPORARY VIEW shard_rows AS SELECT * FROM parquet.`${out}/shard`;

CREATE OR REPLACE TEMPORARY VIEW subjects AS
SELECT account, subject, sum(in_msgs) AS msgs, sum(in_bytes) AS bytes, sum(deliveries) AS deliveries,
       try_divide(sum(deliveries), sum(in_msgs)) AS fanout, max(widest) AS widest,
       sum(CASE WHEN shard <> 63 THEN link_out_msgs ELSE 0 END) AS crossed, sum(unwanted_msgs) AS unwanted
FROM subject_rows GROUP BY account, subject;

CREATE OR REPLACE TEMPORARY VIEW fanout_per_window AS
SELECT broker, account, subject, window_start_us, sum(in_msgs) AS msgs, sum(deliveries) AS deliveries,
       try_divide(sum(deliveries), sum(in_msgs)) AS fanout
FROM subject_rows GROUP BY 1, 2, 3, 4 HAVING sum(in_msgs) > 0;

CREATE OR REPLACE TEMPORARY VIEW shards AS
SELECT shard, sum(in_msgs) AS in_msgs, sum(out_msgs) AS out_msgs, sum(link_out_msgs) AS link_out_msgs,
       sum(cpu_s) AS cpu_s, try_divide(sum(cpu_s), sum(window_us) / 1e6) AS cpu_share, max(lag_max_us) AS lag_max_us
FROM shard_rows WHERE shard <> 63 GROUP BY shard;

-- From here on the rows of clients, which tables of older brokers lack.
CREATE OR REPLACE TEMPORARY VIEW client_rows AS SELECT * FROM parquet.`${out}/client`;

CREATE OR REPLACE TEMPORARY VIEW published AS
SELECT broker, shard, window_start_us, account, user, name, lib, ip, cid, one.subject, one.msgs, one.bytes, one.requests
FROM client_rows LATERAL VIEW explode(published) AS one;

CREATE OR REPLACE TEMPORARY VIEW received AS
SELECT broker, shard, window_start_us, account, user, name, lib, ip, cid, one.subject, one.queue, one.msgs
FROM client_rows LATERAL VIEW explode(received) AS one;

-- For example:
--     SELECT subject, deliveries, fanout FROM subjects ORDER BY deliveries DESC LIMIT 10;
--     SELECT timestamp_micros(window_start_us) AS at, fanout FROM fanout_per_window WHERE subject = 'a.b' ORDER BY at;
