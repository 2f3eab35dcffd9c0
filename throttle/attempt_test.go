package throttle

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// records returns the keys of attempts.
func records(t *testing.T, rdb redis.UniversalClient, prefix string) []string {
	t.Helper()
	keys, err := rdb.Keys(context.Background(), prefix+":*@*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func slotted(t *testing.T) (*Limiter, redis.UniversalClient, string) {
	t.Helper()
	return slottedAt(t, redistest.Prefix(t))
}

func slottedAt(t *testing.T, prefix string) (*Limiter, redis.UniversalClient, string) {
	t.Helper()
	rdb := redistest.Client(t)
	l, err := New(rdb, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1000, Per: time.Second, Burst: 1000}), Config{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return l, rdb, prefix
}

// Attempts whose ids nobody asked for leave no more records than there were ever
// attempts on their way at once; each of the others has its own.
func TestAttemptsShareSlots(t *testing.T) {
	t.Parallel()
	l, rdb, prefix := slotted(t)
	const callers = 4
	if _, err := l.Allow(context.Background(), "p/x"); err != nil { // the server learns the script
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range 25 {
				if d, err := l.Allow(context.Background(), "p/x"); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
		})
	}
	wg.Wait()
	// A command that the client sends again costs a slot, but no slot is for one
	// attempt alone.
	if keys := records(t, rdb, prefix); len(keys) == 0 || len(keys) > 2*callers {
		t.Errorf("%d callers left %d records: %q", callers, len(keys), keys)
	}
	for _, id := range []string{"mine", "#a.1"} {
		if _, err := l.Decide(context.Background(), Request{Scope: "p/x", ID: id}); err != nil {
			t.Fatal(err)
		}
		if n := rdb.Exists(context.Background(), prefix+":{p}@"+escape(id)+markOf(t, "p/x")).Val(); n != 1 {
			t.Errorf("an attempt with the id %q has no record of its own", id)
		}
	}
}

// "150 at most": a record under Headway's own prefix, or one as long, as Redis counts it. Allocations are of a
// few sizes, so a longer prefix can't be taken off.
func TestAttemptsTakeLittle(t *testing.T) {
	t.Parallel()
	l, rdb, prefix := slottedAt(t, "h1")
	for range 2 {
		d, err := l.Allow(context.Background(), "p/x")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Refund(context.Background(), d.Grant); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Allow(context.Background(), "p/x"); err != nil {
			t.Fatal(err)
		}
	}
	keys := records(t, rdb, prefix)
	if len(keys) == 0 {
		t.Fatal("no attempt is recorded")
	}
	for _, key := range keys { // of what was given back, too
		if ttl := rdb.PTTL(context.Background(), key).Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("%s lasts %v", key, ttl)
		}
		if n := rdb.MemoryUsage(context.Background(), key).Val(); n > 150 {
			t.Errorf("%s takes %d bytes", key, n)
		}
	}
}

// A slot whose attempt may yet arrive is not used again: one that has no answer,
// and one that went out twice.
func TestUnknownAttemptKeepsItsSlot(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		sends int32
		err   error
		again bool
	}{
		"answered":   {1, nil, true},
		"failed":     {1, errors.New("connection reset"), false},
		"sent twice": {2, nil, false},
		"never sent": {0, context.Canceled, false},
	} {
		s, a := newSlots(), &attempt{}
		a.sends.Store(test.sends)
		one := s.take()
		one.answered(a, test.err)
		s.put(one)
		if again := s.take() == one; again != test.again {
			t.Errorf("%s: the slot is used again: %t", what, again)
		}
	}
	var none *slot
	none.answered(&attempt{}, nil) // an attempt with an id of its own

	w, l, steady := lossy(t, Config{}, window10())
	w.lose.Store(1)
	for range 3 { // the first asks for the script's text, or loses its reply
		if d, err := l.Allow(t.Context(), "p/x"); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	if l.slots.taken < 2 {
		t.Errorf("%d slots taken, %d idle", l.slots.taken, len(l.slots.idle))
	}
	if left := steady.decide(Request{Scope: "p/x"}).Rules[0].Remaining; left != 6 {
		t.Errorf("%d units are left, want 6", left)
	}
}

// A hook that prints commands sees the attempt id, and counts as no send.
func TestAttemptPrints(t *testing.T) {
	t.Parallel()
	a := &attempt{id: "once"}
	if got := redis.NewCmd(context.Background(), "evalsha", a).String(); got != "evalsha once" || a.sends.Load() != 0 {
		t.Errorf("%q, %d sends", got, a.sends.Load())
	}
}

// Given back twice, also when its slot has been used meanwhile, a grant comes back
// once; sent again after that it stays denied.
func TestGiveBackOnceThroughSlots(t *testing.T) {
	t.Parallel()
	l, rdb, prefix := slotted(t)
	left := func() int64 {
		d, err := l.Peek(context.Background(), Request{Scope: "p/x"})
		if err != nil {
			t.Fatal(err)
		}
		return d.Rules[0].Remaining
	}
	stop := int64(1_800_000_000_000_000)
	l.clock = func() string { return strconv.FormatInt(stop, 10) }
	d, err := l.Allow(context.Background(), "p/x")
	if err != nil || !d.Allowed || left() != 999 {
		t.Fatalf("%+v, %v, %d left", d, err, left())
	}
	if _, err := l.Allow(context.Background(), "p/x"); err != nil || left() != 998 {
		t.Fatalf("%v, %d left", err, left())
	}
	if keys := records(t, rdb, prefix); len(keys) > 2 {
		t.Fatalf("records %q", keys)
	}
	for range 3 {
		if err := l.Refund(context.Background(), d.Grant); err != nil || left() != 998 && left() != 999 {
			t.Fatalf("%v, %d left", err, left())
		}
	}
	last, err := l.Allow(context.Background(), "p/x")
	if err != nil {
		t.Fatal(err)
	}
	before := left()
	if err := l.Refund(context.Background(), last.Grant); err != nil || left() != before+1 {
		t.Fatalf("%v, %d left", err, left())
	}
	p, err := l.scopes.of("p/x")
	if err != nil {
		t.Fatal(err)
	}
	late := &attempt{limiter: l, plan: p, scope: "p/x", id: last.Grant.id, record: last.Grant.record, cost: price{each: 1}}
	reply, err := l.runner.run(context.Background(), late.call())
	if err != nil || reply[0] != 0 || left() != before+1 {
		t.Errorf("an attempt that was given back and arrives late gets %v, %v; %d left", reply, err, left())
	}
}

// "A second Refund within a minute does nothing", also when the
// attempt is sent again in between.
func TestGivenBackStaysKnown(t *testing.T) {
	t.Parallel()
	l, rdb, prefix := slotted(t)
	for _, id := range []string{"warm", "mine"} {
		d, err := l.Decide(context.Background(), Request{Scope: "p/x", ID: id})
		if err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		if id == "warm" {
			continue
		}
		if err := l.Refund(context.Background(), d.Grant); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := l.Decide(context.Background(), Request{Scope: "p/x", ID: "mine"}); err != nil || d.Allowed {
		t.Errorf("sent again after it was given back: %+v, %v", d, err)
	}
	if ttl := rdb.PTTL(context.Background(), prefix+":{p}@mine"+markOf(t, "p/x")).Val(); ttl < 50*time.Second {
		t.Errorf("the attempt is known to be over for %v only", ttl)
	}
}

// An attempt that is asked for again after its start says by how much it is late.
func TestReplayedIsOverdue(t *testing.T) {
	t.Parallel()
	l, _, _ := slotted(t)
	now := int64(1_800_000_000_000_000)
	l.clock = func() string { return strconv.FormatInt(now, 10) }
	for range 2 {
		d, err := l.Decide(context.Background(), Request{Scope: "p/x", ID: "once"})
		if want := time.Duration(now-1_800_000_000_000_000) * time.Microsecond; err != nil || !d.Allowed || d.Wait != 0 || d.overdue != want {
			t.Errorf("%+v, %v; want it %v late", d, err, want)
		}
		now += 250_000
	}
}

// markOf is what the ids of a scope's attempts end with.
func markOf(t *testing.T, scope string) string {
	t.Helper()
	s, err := policy.ParseScope(scope)
	if err != nil {
		t.Fatal(err)
	}
	return scopeMark(s)
}
