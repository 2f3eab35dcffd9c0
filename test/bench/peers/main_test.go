// Package peers has what the tests of other limiters and queues expect, as steps and figures of our own, and what Headway answers
// to the same steps. Where it answers otherwise the row says which decision of docs/peers.md that is, and the page says why. Peers
// that are written in Go run beside ours, in the same steps, so that the figures are theirs.
package peers

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const (
	ms = time.Millisecond
	s  = time.Second
	µs = time.Microsecond
)

// began is when the clocks of all tables stand at 0: a full minute, hour and day.
var began = time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC)

// kind is what a step does.
type kind int

const (
	take   kind = iota // asks for units
	look               // asks what is left, and takes nothing
	cancel             // gives back what step n was granted
	reset              // forgets what was spent
	change             // puts another rule in force
)

// answer is what a limiter says. Times are of ours: 0 where the peer has -1 for none.
type answer struct {
	granted          bool
	remaining        int64
	retry, resetsIn  time.Duration
	wait             time.Duration // until a reservation's start
	error            bool          // refused with an error, for good
	withoutTimes     bool          // the peer's test says nothing of retry and resetsIn
	withoutRemaining bool
}

// step is one step of a table: at a time since the first, with what the peer's test expects.
type step struct {
	at      time.Duration
	kind    kind
	n       int64         // units, or which step to cancel
	ahead   time.Duration // how far ahead a reservation may be
	rule    *policy.Rule
	want    answer
	ours    *answer // where ours is another
	differs string  // the heading in docs/peers.md under which that stands
}

// table is one test of a peer.
type table struct {
	name  string // what the peer's test shows, in our words
	rule  policy.Rule
	steps []step
}

// limiter is whoever answers to steps.
type limiter interface {
	do(t *testing.T, i int, st step) answer
}

// ours is a Headway limiter under one rule, on a Redis and a clock of its own.
type ours struct {
	clock   *redistest.Clock
	limiter *throttle.Limiter
	scope   string
	grants  map[int]throttle.Grant
}

func newOurs(t *testing.T, rule policy.Rule) *ours {
	t.Helper()
	o := &ours{clock: redistest.NewClock(began), scope: redistest.Prefix(t), grants: map[int]throttle.Grant{}}
	rdb := redistest.Client(t)
	rdb.AddHook(o.clock)
	var err error
	// No pad: the peers have none. TestPadIsTheDifference has what it changes.
	o.limiter, err = throttle.New(rdb, o.policy(t, rule), throttle.Config{StartTolerance: -1, Timeout: time.Minute})
	must(t, err)
	return o
}

func (o *ours) policy(t *testing.T, rule policy.Rule) *policy.Policy {
	t.Helper()
	rule.Name = "rule"
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{o.scope: {Rules: []policy.Rule{rule}}})
	must(t, err)
	return policy
}

func (o *ours) do(t *testing.T, i int, st step) answer {
	t.Helper()
	o.clock.Set(began.Add(st.at))
	ask := o.limiter.Decide
	switch st.kind {
	case cancel:
		must(t, o.limiter.Refund(t.Context(), o.grants[int(st.n)]))
		return answer{}
	case reset:
		_, err := o.limiter.Reset(t.Context(), o.scope, "")
		must(t, err)
		return answer{}
	case change:
		o.limiter.SetPolicy(o.policy(t, *st.rule))
		return answer{}
	case look:
		ask = o.limiter.Peek
	}
	d, err := ask(t.Context(), throttle.Request{Scope: o.scope, Cost: max(1, st.n), MaxDelay: st.ahead})
	if cost := new(policy.CostError); errors.As(err, &cost) {
		return answer{error: true}
	}
	must(t, err)
	if st.kind == take && d.Allowed {
		o.grants[i] = d.Grant
	}
	return answer{granted: d.Allowed, remaining: d.Rules[0].Remaining, retry: d.RetryAfter, resetsIn: d.Rules[0].ResetAfter, wait: d.Wait}
}

// close says that an answer is the expected one, with times as near as a peer's clock is.
func (a answer) close(want answer, by exactly) bool {
	near := func(x, y time.Duration) bool { return x-y <= by.times && y-x <= by.times }
	fewer := want.remaining - a.remaining
	return a.granted == want.granted && a.error == want.error && (want.withoutRemaining || 0 <= fewer && fewer <= by.remaining) &&
		(want.withoutTimes || near(a.retry, want.retry) && near(a.resetsIn, want.resetsIn)) && near(a.wait, want.wait)
}

// exactly is how near a peer's own answers are to the table's: ours are exact to the microsecond.
type exactly struct {
	times     time.Duration
	remaining int64 // it may say so many fewer
}

// run takes the steps of each table with the peer, where it is here, and with ours.
func run(t *testing.T, tables []table, peer func(*testing.T, policy.Rule) limiter, exact exactly) {
	t.Helper()
	for _, tb := range tables {
		t.Run(tb.name, func(t *testing.T) {
			t.Parallel()
			var beside limiter
			if peer != nil {
				beside = peer(t, tb.rule)
			}
			own := newOurs(t, tb.rule)
			for i, st := range tb.steps {
				silent := st.kind == cancel || st.kind == reset || st.kind == change
				if beside != nil {
					if got := beside.do(t, i, st); !silent && !got.close(st.want, exact) {
						t.Errorf("step %d: the peer answers %+v; the table says %+v", i, got, st.want)
					}
				}
				want := st.want
				if st.ours != nil {
					want = *st.ours
				}
				if (st.ours != nil) != (st.differs != "") {
					t.Errorf("step %d: a difference and its reason belong together", i)
				}
				if st.differs != "" {
					decided(t, st.differs)
				}
				if got := own.do(t, i, st); !silent && !got.close(want, exactly{}) {
					t.Errorf("step %d: got %+v, want %+v", i, got, want)
				}
			}
		})
	}
}

// decided fails unless a difference stands in docs/peers.md, as a heading of its own.
func decided(t *testing.T, what string) {
	t.Helper()
	if !slices.Contains(strings.Split(read(t, "../../../docs/peers.md"), "\n"), "### "+what) {
		t.Errorf("docs/peers.md has no heading %q", what)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return string(text)
}

// Each difference that docs/peers.md names is one that a test here shows.
func TestDifferencesAreShown(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	tests := ""
	for _, file := range files {
		tests += read(t, file)
	}
	for line := range strings.Lines(read(t, "../../../docs/peers.md")) {
		heading, ok := strings.CutPrefix(strings.TrimSpace(line), "### ")
		if ok && !strings.Contains(tests, strconv.Quote(heading)) {
			t.Errorf("no test shows %q", heading)
		}
	}
}

// says fails unless a page has a sentence, wherever its lines break.
func says(t *testing.T, page, sentence string) {
	t.Helper()
	if !strings.Contains(strings.Join(strings.Fields(read(t, page)), " "), sentence) {
		t.Errorf("%s does not say %q", page, sentence)
	}
}

// yes and no are what most steps expect: what remains, and the times.
func yes(remaining int64, resetsIn time.Duration) answer {
	return answer{granted: true, remaining: remaining, resetsIn: resetsIn}
}

func no(remaining int64, retry, resetsIn time.Duration) answer {
	return answer{remaining: remaining, retry: retry, resetsIn: resetsIn}
}

// yesOf and noOf are those of tests that look at what remains alone.
func yesOf(remaining int64) answer {
	return answer{granted: true, remaining: remaining, withoutTimes: true}
}

func noOf(remaining int64) answer { return answer{remaining: remaining, withoutTimes: true} }

// at is a reservation's start, from now.
func at(wait time.Duration) answer {
	return answer{granted: true, wait: wait, withoutTimes: true, withoutRemaining: true}
}

var (
	refused = answer{error: true}
	denied  = answer{withoutTimes: true, withoutRemaining: true}
)

func bucket(limit int64, per time.Duration, burst int64) policy.Rule {
	return policy.Rule{Algorithm: policy.TokenBucket, Limit: limit, Per: per, Burst: burst}
}

func sliding(limit int64, per time.Duration) policy.Rule {
	return policy.Rule{Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
}

func but(a answer) *answer { return &a }

var must = redistest.Must
