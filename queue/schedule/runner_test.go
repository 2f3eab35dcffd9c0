package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/limitsyaml"
)

// "enqueued once however many workers run": the tasks really run, and those of five processes are counted.
func TestEachRunIsEnqueuedOnceByManyRunners(t *testing.T) {
	inBubble(t, "2026-11-22 05:58:30", func(t *testing.T, w *world) {
		ran := map[string]int{}
		server := asynq.NewServerFromRedisClient(w.rdb, asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Second})
		must(t, server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			ran[id]++
			return nil
		})))
		var stops []func()
		for range 5 {
			stops = append(stops, w.start(w.runner(`schedules:
  often: {cron: "*/5 * * * *", task: {type: report, scope: p/a}}
  late:  {cron: "*/20 * * * *", jitter: 4m, task: {type: report, scope: p/b}}
`, nil, nil)))
		}
		pass(70 * time.Minute)
		for _, stop := range stops {
			stop()
		}
		server.Shutdown()
		want := map[string]int{}
		for run := moment(t, "2026-11-22 06:00:00"); run.Before(moment(t, "2026-11-22 07:08:00")); run = run.Add(5 * time.Minute) {
			want[fmt.Sprintf("schedule:often:%d", run.Unix())] = 1
			if run.Minute()%20 == 0 {
				want[fmt.Sprintf("schedule:late:%d", run.Unix())] = 1
			}
		}
		if !maps.Equal(ran, want) {
			t.Errorf("ran %v, want %v", ran, want)
		}
	})
}

// "A process that dies between the two steps has not advanced the record, so any other process sees that the run is due."
func TestRunnerDiesBetweenEnqueueAndRecord(t *testing.T) {
	inBubble(t, "2026-11-22 05:59:00", func(t *testing.T, w *world) {
		dies := errors.New("killed")
		first := w.runner(file(daily), nil, nil)
		killed := w.runner(file(daily), func(cmd redis.Cmder) error {
			if cmd.Name() == "zadd" {
				return dies
			}
			return nil
		}, nil)
		poll := func(r *Runner, want error, record string, runs ...string) {
			t.Helper()
			if _, err := r.poll(t.Context()); !errors.Is(err, want) {
				t.Fatalf("%v, want %v", err, want)
			}
			if w.want("s", runs...); !w.record().Equal(moment(t, record)) {
				t.Errorf("the record is at %s, want %s", w.record(), record)
			}
		}
		poll(first, nil, "2026-11-22 05:59:00")
		pass(2 * time.Minute)
		poll(killed, dies, "2026-11-22 05:59:00", "2026-11-22 06:00:00")
		for range 2 { // finds the id taken, and nothing to do
			poll(first, nil, "2026-11-22 06:01:00", "2026-11-22 06:00:00")
		}
	})
}

// record returns the only one.
func (w *world) record() time.Time {
	w.t.Helper()
	all, err := w.rdb.ZRangeWithScores(context.Background(), recordsKey, 0, -1).Result()
	if err != nil || len(all) != 1 {
		w.t.Fatalf("records %v, %v", all, err)
	}
	return time.Unix(int64(all[0].Score), 0).UTC()
}

// Runs that were missed while no process lived are caught up as catch_up says, at most 100 of them. The log says how many are left out.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	runs := func(first, last string, apart time.Duration) (all []string) {
		for at := moment(t, "2026-11-22 "+first); !at.After(moment(t, "2026-11-22 "+last)); at = at.Add(apart) {
			all = append(all, at.Format(time.DateTime))
		}
		return all
	}
	seven, noon := runs("07:00:00", "07:00:00", time.Hour), runs("12:00:00", "12:00:00", time.Hour)
	for name, c := range map[string]struct {
		fields string
		back   string // when a process lives again, for a second
		want   []string
		logged string
	}{
		"by default the last":     {`cron: "0 * * * *"`, "12:34:56", noon, "left_out=5 enqueued=1 catch_up=last"},
		"one that was missed":     {`cron: "0 7 * * *"`, "12:34:56", seven, ""},
		"all":                     {`cron: "0 * * * *", catch_up: all`, "12:34:56", runs("07:00:00", "12:00:00", time.Hour), ""},
		"all, too many":           {`cron: "*/5 * * * *", catch_up: all`, "15:32:10", runs("07:15:00", "15:30:00", 5*time.Minute), "left_out=8 enqueued=100 catch_up=all"},
		"none":                    {`cron: "0 * * * *", catch_up: none`, "12:34:56", nil, "left_out=6 enqueued=0 catch_up=none"},
		"none, within the minute": {`cron: "0 * * * *", catch_up: none`, "12:00:59", noon, "left_out=5 enqueued=1"},
		"nothing was missed":      {`cron: "0 5 * * *", catch_up: all`, "12:34:56", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "2026-11-22 06:30:00", func(t *testing.T, w *world) {
				w.live(file(c.fields), 4*time.Minute)
				w.want("s")
				pass(moment(t, "2026-11-22 "+c.back).Sub(w.now()))
				w.live(file(c.fields), time.Second)
				w.want("s", c.want...)
				if log := w.log.String(); !strings.Contains(log, c.logged) || c.logged == "" && log != "" {
					t.Errorf("the log is %q, want %q in it", log, c.logged)
				}
			})
		})
	}
}

// A record advances each minute when nothing is due, and lives for a year after its last use, and the key with it.
func TestRecordsExpire(t *testing.T) {
	inBubble(t, "2026-11-22 07:00:00", func(t *testing.T, w *world) {
		stop := w.start(w.runner(file(daily), nil, nil))
		defer stop()
		pass(time.Second)
		old := redis.Z{Member: "0123456789abcdef:s", Score: float64(w.now().Add(-recordsTTL - time.Hour).Unix())}
		w.rdb.ZAdd(t.Context(), recordsKey, old)
		for range 10 {
			pass(10 * time.Minute)
			if behind := w.now().Sub(w.record()); behind > late+pollEvery { // it is the only one
				t.Errorf("the record is %v behind", behind)
			}
			if ttl := w.rdb.TTL(t.Context(), recordsKey).Val(); ttl < recordsTTL-2*time.Minute {
				t.Errorf("the key lives %v", ttl)
			}
		}
		w.want("s")
	})
}

// "A changed expression does not catch up on runs that never were."
func TestChangedExpression(t *testing.T) {
	inBubble(t, "2026-11-22 05:30:00", func(_ *testing.T, w *world) {
		hourly, halves := file(`cron: "0 * * * *", catch_up: all`), file(`cron: "30 * * * *", catch_up: all`)
		w.live(hourly, time.Hour) // 6:00
		w.want("s", "2026-11-22 06:00:00")
		pass(3 * time.Hour)
		w.live(halves, 10*time.Minute) // nothing before 9:30, where it began
		w.want("s", "2026-11-22 06:00:00")
		w.live(halves, time.Hour) // 10:30
		pass(2 * time.Hour)
		// The first one is back, and was not in force from 9:30 to 10:40. It catches up from there: then all processes were gone.
		w.live(hourly, time.Second)
		w.want("s", "2026-11-22 06:00:00", "2026-11-22 10:30:00", "2026-11-22 11:00:00", "2026-11-22 12:00:00")
	})
}

// While old and new workers run side by side, runs of both expressions are enqueued, and none is lost.
func TestTwoExpressionsSideBySide(t *testing.T) {
	inBubble(t, "2026-11-22 05:30:00", func(_ *testing.T, w *world) {
		old := w.start(w.runner(file(daily), nil, nil))
		pass(10 * time.Minute)
		anew := w.start(w.runner(file(`cron: "5 6 * * *"`), nil, nil))
		pass(time.Hour)
		old()
		anew()
		w.want("s", "2026-11-22 06:00:00", "2026-11-22 06:05:00")
	})
}

// A schedule that only spells its expression differently, or has another task, is the same.
func TestSpellingIsNoChange(t *testing.T) {
	inBubble(t, "2026-11-22 05:30:00", func(_ *testing.T, w *world) {
		w.live(file(daily), time.Second)
		pass(time.Hour)
		w.live(`schedules: {s: {cron: " 0  6 * * *", timezone: UTC, jitter: 1s, task: {type: other, scope: q}}}`, time.Second)
		w.want("s", "2026-11-22 06:00:00")
	})
}

// "a process whose clock is wrong neither runs early nor twice"
func TestClockSkew(t *testing.T) {
	t.Parallel()
	bubble := moment(t, "2000-01-01 00:00:00") // when this process's clock begins
	for _, skew := range []time.Duration{-25 * time.Hour, -time.Hour, time.Hour, 25 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			inBubble(t, bubble.Add(skew).Format(time.DateTime), func(_ *testing.T, w *world) {
				from := w.now().Truncate(24 * time.Hour).Add(24 * time.Hour)
				pass(from.Sub(w.now()))
				stop := w.start(w.runner(file(daily), nil, nil))
				defer stop()
				pass(6*time.Hour - time.Second)
				w.want("s")
				pass(time.Second + 100*time.Millisecond)
				w.want("s", from.Add(6*time.Hour).Format(time.DateTime))
				pass(2 * time.Hour)
				w.want("s", from.Add(6*time.Hour).Format(time.DateTime))
			})
		})
	}
}

// If Redis's clock is set back, nothing runs twice, and the log reports, once, a record that is far ahead.
func TestServerClockGoesBack(t *testing.T) {
	inBubble(t, "2026-11-22 05:59:00", func(t *testing.T, w *world) {
		w.live(file(daily), 5*time.Minute)
		w.want("s", "2026-11-22 06:00:00")
		w.shift -= time.Hour
		w.live(file(daily), 2*time.Hour)
		w.want("s", "2026-11-22 06:00:00")
		if log := w.log.String(); strings.Count(log, "ahead of Redis's clock") != 1 {
			t.Errorf("the log is %q", log)
		}
	})
}

// While Redis is down no run is lost, and the log says once that it is down.
func TestRedisDown(t *testing.T) {
	inBubble(t, "2026-11-22 05:59:00", func(t *testing.T, w *world) {
		var down atomic.Bool
		stop := w.start(w.runner(file(daily), func(redis.Cmder) error {
			if down.Load() {
				return errors.New("no route to Redis")
			}
			return nil
		}, nil))
		defer stop()
		pass(500 * time.Millisecond)
		down.Store(true)
		pass(20 * time.Minute)
		w.want("s")
		down.Store(false)
		pass(retryAfter)
		w.want("s", "2026-11-22 06:00:00")
		log := w.log.String()
		if strings.Count(log, "no route to Redis") != 1 || strings.Count(log, "enqueued again") != 1 || strings.Count(log, "\n") != 2 {
			t.Errorf("the log is %q", log)
		}
	})
}

// A rejected task delays no later run, and the log reports it.
func TestRefusedTask(t *testing.T) {
	inBubble(t, "2026-11-22 05:59:00", func(t *testing.T, w *world) {
		policy, err := limitsyaml.Parse("limits.yaml", []byte("limits: {}"))
		must(t, err)
		stop := w.start(w.runner(file(`cron: "0,1 6 * * *"`), nil, policy))
		pass(5 * time.Minute)
		stop()
		w.want("s")
		if log := w.log.String(); strings.Count(log, "scheduled task rejected") != 2 {
			t.Errorf("the log is %q", log)
		}
	})
}

// Jitter puts the task off, to the second that Start names, and not the enqueuing.
func TestJitterPutsTheTaskOff(t *testing.T) {
	inBubble(t, "2000-01-01 00:00:00", func(t *testing.T, w *world) { // where a bubble begins: both clocks show it
		fields := `cron: "*/10 * * * *", jitter: 9m`
		schedule := parseFile(t, file(fields)).Schedules[0]
		want, starts := map[string]time.Time{}, map[time.Duration]bool{}
		for run := w.now(); len(want) < 6; {
			run = schedule.Next(run)
			want[schedule.TaskFor(run).ID] = schedule.Start(run)
			starts[schedule.Start(run).Sub(run)] = true
		}
		w.live(file(fields), time.Hour+time.Second)
		infos, err := asynq.NewInspectorFromRedisClient(w.rdb).ListScheduledTasks("default")
		must(t, err)
		for _, info := range infos {
			if !info.NextProcessAt.Equal(want[info.ID]) {
				t.Errorf("%s at %s, want %s", info.ID, info.NextProcessAt, want[info.ID])
			}
		}
		if len(infos) != len(want) || len(starts) < 3 {
			t.Errorf("%d tasks are put off, by %v", len(infos), starts)
		}
	})
}
