package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
	"github.com/headway-go/headway/test/redistest"
)

// What scripts fail with at a damaged value is told from all that has other causes, whatever the
// server.
func TestDamagedErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"ERR user_script:12: attempt to perform arithmetic on local 'a' (a nil value) script: ab, on @user_script:12.": true,
		"ERR value is not a valid float script: ab, on @user_script:3.":                                                true,
		"WRONGTYPE Operation against a key holding the wrong kind of value script: ab, on @user_script:3.":             true,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                            true,
		"ERR Error running script (call to f_ab): @user_script:9: user_script:9: attempt to compare nil with number":   true,
		"ERR Error compiling script (new function): <string>:9: attempt to index a nil value":                          true,

		"ERR Error running script (call to f_ab): @user_script: 1: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.": false,
		"ERR The user executed a script that can't run this command or subcommand script: ab, on @user_script:9.":                             false,
		"NOPERM User a has no permissions to access one of the keys script: ab, on @user_script:9.":                                           false,
		"OOM command not allowed when used memory > 'maxmemory'. script: ab, on @user_script:9.":                                              false,
		"READONLY You can't write against a read only replica. script: ab, on @user_script:9.":                                                false,
		"MISCONF Errors writing to the AOF file: no space script: ab, on @user_script:9.":                                                     false,
		"NOSCRIPT No matching script. Please use EVAL.":                                                                                       false,
		"BUSY Redis is busy running a script.":                                                                                                false,
		"ERR Error running script: Script killed by user with SCRIPT KILL. user_script":                                                       false,
		"LOADING Redis is loading the dataset in memory":                                                                                      false,
		"MOVED 1 127.0.0.1:1":           false,
		"TRYAGAIN Multiple keys":        false,
		"ERR unknown command 'EVALSHA'": false,
	} {
		if got := damaged(fmt.Errorf("look: %w", unknown(text))); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
	for _, err := range []error{nil, errReply, context.DeadlineExceeded, errors.New("user_script: connection reset")} {
		if damaged(err) {
			t.Errorf("%v is no error of a script", err)
		}
	}
}

// logLines keeps what is logged.
type logLines struct {
	slog.Handler
	records []slog.Record
}

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	l.records = append(l.records, r)
	return nil
}

// calls is a hook that counts how often each script is asked for.
type calls struct{ of map[string]int }

func (c *calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			c.of[fmt.Sprint(cmd.Args()[1])]++
		}
		return next(ctx, cmd)
	}
}

func (c *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// What was dropped is logged once, with how much it was, and without what it was.
func TestMendTellsOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, damagedPolicy(t), func(b *bench) {
		w, log := begin(b), &logLines{}
		b.cfg.Logger = slog.New(log)
		b.rdb.HSet(ctx, b.provider("p")+"!out", "/a/x\x00:secret", "short", "/b/x\x00:secret", "")
		w.goOn(nil)
		if len(log.records) != 1 || log.records[0].Level != slog.LevelWarn {
			b.t.Fatalf("%v were logged", log.records)
		}
		text := log.records[0].Message
		log.records[0].Attrs(func(a slog.Attr) bool {
			text += " " + a.String()
			return true
		})
		if !strings.Contains(text, "provider=p dropped=2 ") || strings.Contains(text, "secret") {
			b.t.Errorf("%s", text)
		}
	})
}

// A rule's own state is nobody's to drop: the error is what it was, and what cannot be mended is not
// looked through with each call.
func TestNothingToMend(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, damagedPolicy(t), func(b *bench) {
		w := begin(b)
		scripts := &calls{map[string]int{}}
		b.rdb.AddHook(scripts)
		state := b.provider("p") + ":all"
		b.rdb.Del(ctx, state)
		b.rdb.RPush(ctx, state, "foreign")
		began := time.Now()
		for range 20 {
			_, err := b.Wake(ctx, WakeRequest{Provider: "p", Most: 1, All: true})
			_, asked := b.Decide(ctx, w.tasks[0])
			for _, err := range []error{err, asked} {
				if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
					b.t.Fatalf("%v", err)
				}
			}
		}
		if n, most := scripts.of[lua.Mend.SHA], 1+int(time.Since(began)/vainMends); n < 1 || n > most {
			b.t.Errorf("it was looked through %d times", n)
		}
		if n := b.rdb.LLen(ctx, state).Val(); n != 1 {
			b.t.Errorf("the foreign key has %d entries", n)
		}
		b.rdb.Del(ctx, state)
		w.goOn(nil)
	})
}

// A user who may not drop anything gets the error that there was, and when it may, all goes on.
func TestMendRefused(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	w := begin(newBench(t, rdb, Config{Logger: slog.New(slog.DiscardHandler)}, damagedPolicy(t)))
	w.rdb.Set(ctx, w.provider("p")+"!round", "text", 0)
	acl := func(rule string) {
		if err := rdb.Do(ctx, "ACL", "SETUSER", "default", rule).Err(); err != nil {
			t.Fatal(err)
		}
	}
	acl("-del")
	for range 2 {
		_, err := w.Wake(ctx, WakeRequest{Provider: "p", Most: 1, All: true})
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Fatalf("%v", err)
		}
	}
	acl("+del")
	redistest.WaitFor(t, "what is damaged to be dropped", bound, func() bool {
		_, err := w.Wake(ctx, WakeRequest{Provider: "p", Most: 1, All: true})
		return err == nil
	})
	w.goOn(nil)
}

// A glance that meets a key of another type is followed by a whole look, which mends it.
func TestGlanceAtDamaged(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, damagedPolicy(t), func(b *bench) {
		w := begin(b)
		for _, p := range w.out { // while anybody is out no glance is enough
			w.comes(Request{Scope: p.Scope, Ticket: p.Ticket})
		}
		woken := b.wake(WakeRequest{Most: 1, StandStill: []string{"g/"}})
		b.lines.of("p").looked(1, Woken{Waiting: true, Next: time.Minute, Parked: woken.Parked})
		b.rdb.Set(ctx, b.provider("p")+"!due", "text", 0)
		b.wake(WakeRequest{Glance: true})
		w.goOn(nil)
	})
}

// Where all that was known of the seats' times is lost, who comes anew is not before all who wait.
func TestDamagedTimes(t *testing.T) {
	t.Parallel()
	policy := policyOf(t, Rule{Name: "r", Algorithm: TokenBucket, Limit: 10, Per: sec, Burst: 10})
	onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, policy, func(b *bench) {
		b.decide(Request{Scope: "p/z", Cost: 10})
		asks := func(scope string, n int) (list []Ask) {
			for i := range n {
				list = append(list, Ask{Scope: scope, Ticket: fmt.Sprint(i)})
			}
			return list
		}
		lineUpAll(b, slices.Concat(asks("p/a", 120), asks("p/b", 120)))
		starts := func(n int) (scopes []string) {
			for len(scopes) < n {
				b.pass(100 * ms)
				for _, p := range b.wake(WakeRequest{Most: 1}).Released {
					if d := b.decide(Request{Scope: p.Scope, Ticket: p.Ticket}); !d.Allowed {
						b.t.Fatalf("%v: %+v", p, d)
					}
					scopes = append(scopes, p.Scope)
				}
			}
			return scopes
		}
		starts(100)
		b.rdb.Del(ctx, b.provider("p")+"!at")
		b.rdb.Set(ctx, b.provider("p")+"!at", "text", 0)
		lineUpAll(b, asks("p/c", 120))
		counts := map[string]int{}
		for _, scope := range starts(90) {
			counts[scope]++
		}
		for _, scope := range []string{"p/a", "p/b", "p/c"} {
			if n := counts[scope]; n < 28 || n > 32 {
				b.t.Errorf("%v: %s should have a third", counts, scope)
			}
		}
	})
}

// "A scope that has lost both entries gets a new seat", and its line goes on: whether the call that meets
// the damage names the line or not.
func TestDamagedSeatComesBack(t *testing.T) {
	t.Parallel()
	policy := policyOf(t, Rule{Name: "r", Algorithm: TokenBucket, Limit: 10, Per: sec, Burst: 10})
	for _, known := range []bool{true, false} {
		t.Run(fmt.Sprint("known ", known), func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{Logger: slog.New(slog.DiscardHandler)}, policy, func(b *bench) {
				b.decide(Request{Scope: "p/z", Cost: 10})
				lineUpAll(b, []Ask{{Scope: "p/a", Ticket: "0"}, {Scope: "p/a", Ticket: "1"}, {Scope: "p/b", Ticket: "2"}})
				seat := b.rdb.HGet(ctx, b.provider("p")+"!at", "S/a").Val()
				if n := b.rdb.ZRem(ctx, b.provider("p")+"!round", seat).Val(); n != 1 {
					b.t.Fatalf("%q is no seat", seat)
				}
				b.rdb.HSet(ctx, b.provider("p")+"!at", "S/a", "text")
				b.rdb.HSet(ctx, b.provider("p")+"!out", "/b\x00:2", "text")
				if !known {
					other, err := New(b.rdb, policy, b.cfg)
					if err != nil {
						b.t.Fatal(err)
					}
					other.clock, b.Limiter = b.clock, other
				}
				var started []string
				for range 20 {
					b.pass(100 * ms)
					for _, p := range b.wake(WakeRequest{Most: 1}).Released {
						b.decide(Request{Scope: p.Scope, Ticket: p.Ticket})
						started = append(started, p.Ticket)
					}
				}
				if slices.Sort(started); !slices.Equal(started, []string{"0", "1", "2"}) {
					b.t.Errorf("%v were started", started)
				}
			})
		})
	}
}

// Any number of damaged values is dropped in one pass.
func TestManyDamagedValues(t *testing.T) {
	t.Parallel()
	const many = 20_000
	b := newBench(t, redistest.NewServer(t).Client(t), Config{Logger: slog.New(slog.DiscardHandler)}, damagedPolicy(t))
	w, log := begin(b), &logLines{}
	b.cfg.Logger = slog.New(log)
	pipe, key := b.rdb.Pipeline(), b.provider("p")
	for i := range many {
		scope := fmt.Sprint("/a/", i)
		pipe.HSet(ctx, key+"!out", scope+"\x00:t", "short")
		pipe.HSet(ctx, key+"!at", "S"+scope, "no seat", "L"+scope, "no number")
		pipe.ZAdd(ctx, key+"!round", redis.Z{Member: fmt.Sprint("no seat ", i)})
		pipe.ZAdd(ctx, key+"!due", redis.Z{Member: fmt.Sprint("no rule ", i), Score: 1})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.wake(WakeRequest{})
	t.Logf("%v for %d damaged values", time.Since(began), 5*many)
	if len(log.records) != 1 {
		t.Fatalf("%v", log.records)
	}
	log.records[0].Attrs(func(a slog.Attr) bool {
		if a.Key == "dropped" && a.Value.Int64() != 5*many {
			t.Errorf("%v of %d", a, 5*many)
		}
		return true
	})
	w.goOn(nil)
}
