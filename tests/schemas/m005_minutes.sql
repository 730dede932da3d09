BEGIN TRANSACTION;
CREATE TABLE checks (
            id INTEGER PRIMARY KEY,
            request INTEGER NOT NULL,
            divergence TEXT NOT NULL,
            common INTEGER NOT NULL,
            evaluated INTEGER,
            slot INTEGER NOT NULL,
            ms REAL NOT NULL
        );
INSERT INTO "checks" VALUES(1,2,'identical',80,1200,1,400.0);
CREATE TABLE findings (
            id INTEGER PRIMARY KEY,
            request INTEGER NOT NULL,
            cause TEXT NOT NULL,
            place TEXT NOT NULL,
            tokens INTEGER NOT NULL,
            seconds REAL,
            times INTEGER NOT NULL,
            remedy TEXT NOT NULL,
            verdict TEXT NOT NULL
        );
INSERT INTO "findings" VALUES(1,1,'clock','system',900,1.5,1,'rewrite','900 tokens read again (1.5 s): a clock in system; freeze it');
CREATE TABLE minutes (
            minute INTEGER PRIMARY KEY,
            requests INTEGER NOT NULL,
            hits INTEGER NOT NULL,
            soft_hits INTEGER NOT NULL,
            misses INTEGER NOT NULL,
            unknown INTEGER NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            reused INTEGER NOT NULL,
            evaluated INTEGER NOT NULL,
            alone_evaluated INTEGER NOT NULL,
            own_evaluated INTEGER NOT NULL DEFAULT 0
        );
INSERT INTO "minutes" VALUES(29400000,1,0,0,1,0,1000,0,1000,1000,0);
INSERT INTO "minutes" VALUES(29400001,1,1,0,0,0,1200,1019,181,1000,300);
INSERT INTO "minutes" VALUES(29400002,1,0,0,0,1,0,0,0,0,0);
CREATE TABLE own_requests (
            id INTEGER PRIMARY KEY,
            request INTEGER NOT NULL,
            purpose TEXT NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            reused INTEGER,
            evaluated INTEGER,
            ms REAL NOT NULL
        );
INSERT INTO "own_requests" VALUES(1,2,'primer',800,500,300,40.0);
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
INSERT INTO "toki_migrations" VALUES('m002_own_requests',1764000001.0);
INSERT INTO "toki_migrations" VALUES('m003_findings',1764000002.0);
INSERT INTO "toki_migrations" VALUES('m004_checks',1764000003.0);
INSERT INTO "toki_migrations" VALUES('m005_minutes',1764000004.0);
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
CREATE INDEX own_requests_request ON own_requests (request);
CREATE INDEX findings_request ON findings (request);
CREATE INDEX checks_request ON checks (request);
CREATE INDEX requests_conversation ON requests (conversation, id);
CREATE TRIGGER minutes_more AFTER INSERT ON requests BEGIN
            INSERT INTO minutes (minute, requests, hits, soft_hits, misses, unknown, prompt_tokens, reused, evaluated, alone_evaluated) VALUES (CAST(NEW.at / 60 AS INTEGER), 1, (NEW.outcome = 'hit'), (NEW.outcome = 'soft_hit'), (NEW.outcome = 'miss'), (NEW.outcome = 'unknown'), coalesce(NEW.prompt_tokens, 0), coalesce(NEW.reused, 0), coalesce(NEW.evaluated, 0), iif(NEW.evaluated IS NULL, 0, coalesce(NEW.prompt_tokens - NEW.alone, NEW.evaluated)))
            ON CONFLICT (minute) DO UPDATE SET requests = requests + excluded.requests, hits = hits + excluded.hits, soft_hits = soft_hits + excluded.soft_hits, misses = misses + excluded.misses, unknown = unknown + excluded.unknown, prompt_tokens = prompt_tokens + excluded.prompt_tokens, reused = reused + excluded.reused, evaluated = evaluated + excluded.evaluated, alone_evaluated = alone_evaluated + excluded.alone_evaluated;
        END;
CREATE TRIGGER minutes_less AFTER DELETE ON requests BEGIN
            UPDATE minutes SET requests = requests - 1, hits = hits - (OLD.outcome = 'hit'), soft_hits = soft_hits - (OLD.outcome = 'soft_hit'), misses = misses - (OLD.outcome = 'miss'), unknown = unknown - (OLD.outcome = 'unknown'), prompt_tokens = prompt_tokens - coalesce(OLD.prompt_tokens, 0), reused = reused - coalesce(OLD.reused, 0), evaluated = evaluated - coalesce(OLD.evaluated, 0), alone_evaluated = alone_evaluated - iif(OLD.evaluated IS NULL, 0, coalesce(OLD.prompt_tokens - OLD.alone, OLD.evaluated)) WHERE minute = CAST(OLD.at / 60 AS INTEGER);
            DELETE FROM minutes WHERE minute = CAST(OLD.at / 60 AS INTEGER) AND requests = 0;
        END;
CREATE TRIGGER own_minutes_more AFTER INSERT ON own_requests WHEN NEW.evaluated IS NOT NULL BEGIN
                UPDATE minutes SET own_evaluated = own_evaluated + NEW.evaluated
                WHERE minute = (SELECT CAST(at / 60 AS INTEGER) FROM requests WHERE id = NEW.request);
            END;
CREATE TRIGGER own_minutes_less AFTER DELETE ON own_requests WHEN OLD.evaluated IS NOT NULL BEGIN
                UPDATE minutes SET own_evaluated = own_evaluated - OLD.evaluated
                WHERE minute = (SELECT CAST(at / 60 AS INTEGER) FROM requests WHERE id = OLD.request);
            END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('requests',3);
COMMIT;
