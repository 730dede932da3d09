BEGIN TRANSACTION;
CREATE TABLE requests (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            at REAL NOT NULL,
            conversation INTEGER NOT NULL,
            endpoint TEXT NOT NULL,
            model TEXT NOT NULL,
            status INTEGER,
            stream INTEGER NOT NULL,
            prompt_tokens INTEGER,
            reply_tokens INTEGER,
            parent INTEGER,
            shared INTEGER NOT NULL,
            similarity REAL,
            predicted INTEGER,
            alone INTEGER,
            reused INTEGER,
            evaluated INTEGER,
            outcome TEXT NOT NULL,
            slot INTEGER,
            action TEXT NOT NULL,
            reason TEXT NOT NULL,
            first_byte_ms REAL,
            added_ms REAL NOT NULL,
            total_ms REAL NOT NULL
        );
INSERT INTO "requests" VALUES(1,1764000000.25,1,'/v1/chat/completions','m',200,1,1000,20,NULL,0,NULL,0,0,0,1000,'miss',0,'passed','still learning how this server chooses',500.5,12.25,900.0);
INSERT INTO "requests" VALUES(2,1764000060.5,1,'/v1/chat/completions','m',200,1,1200,NULL,1,1019,0.97,1019,200,1019,181,'hit',1,'pinned','slot 1: reuses 1,019 tokens',90.0,8.5,300.0);
INSERT INTO "requests" VALUES(3,1764000120.0,3,'/completion','',NULL,0,NULL,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,'unknown',NULL,'passed','the client left while its request was held',NULL,3.0,3.0);
CREATE TABLE toki_migrations (name TEXT PRIMARY KEY, applied_at REAL NOT NULL);
INSERT INTO "toki_migrations" VALUES('m001_requests',1764000000.0);
CREATE INDEX requests_at ON requests (at);
CREATE VIEW totals AS SELECT
            count(*) AS requests,
            count(*) FILTER (WHERE outcome = 'hit') AS hits,
            count(*) FILTER (WHERE outcome = 'soft_hit') AS soft_hits,
            count(*) FILTER (WHERE outcome = 'miss') AS misses,
            count(*) FILTER (WHERE outcome = 'unknown') AS unknown,
            coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
            coalesce(sum(evaluated), 0) AS evaluated,
            coalesce(sum(coalesce(prompt_tokens - alone, evaluated)) FILTER (WHERE evaluated IS NOT NULL), 0)
                AS alone_evaluated
        FROM requests;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('requests',3);
COMMIT;
