package throttle

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// turnCosts are how many commands the scripts of turns run where no name has a weight and
// nothing costs by unit: of tasks under one rule, and under one of each of two levels. None
// runs more than before there were shares, but for a start, which takes its task from those who are
// out when it has its units, and not before.
var turnCosts = map[string][2]int{
	"first joins":          {23, 25},
	"a second":             {14, 16},
	"another tenant's":     {17, 18},
	"its second":           {14, 15},
	"comes early":          {12, 13},
	"look, too early":      {10, 10},
	"look":                 {40, 45},
	"start":                {6, 9},
	"look at the next":     {19, 23},
	"start of the next":    {6, 9},
	"look, a line empties": {20, 24},
	"its start":            {6, 9},
	"look, the last":       {16, 18},
	"the last start":       {6, 9},
	"look, nobody waits":   {2, 2},
	"100 line up":          {84, 104},
	"20 starts":            {547, 690},
}

// "Who uses no weights and no units pays nothing for them."
func TestTurnsCost(t *testing.T) {
	t.Parallel()
	account := []Rule{{Name: "r", Algorithm: TokenBucket, Limit: 1, Per: sec, Burst: 2}}
	own := Node{Rules: []Rule{{Name: "own", Algorithm: SlidingWindow, Limit: 1000, Per: sec}}}
	for i, limits := range []map[string]Node{
		{"p": {Rules: account}},
		{"p": {Rules: account, Scopes: map[string]Node{"*": own}}},
	} {
		t.Run(fmt.Sprintf("%d levels", i+1), func(t *testing.T) {
			t.Parallel()
			policy, err := NewPolicy(UnmatchedDeny, limits)
			if err != nil {
				t.Fatal(err)
			}
			steps := costOfTurns(t, redistest.NewServer(t).Client(t), policy)
			if len(steps) != len(turnCosts) {
				t.Errorf("%d steps, want %d", len(steps), len(turnCosts))
			}
			for _, step := range steps {
				if n, most := redistest.Total(step.commands), turnCosts[step.name][i]; n > most {
					t.Errorf("%s: %d commands, of %d at most: %v", step.name, n, most, step.commands)
				}
			}
		})
	}
}

type turnCost struct {
	name     string
	commands map[string]int
}

// costOfTurns counts what tasks of two tenants cost that join their lines, wait, are woken
// and start.
func costOfTurns(t *testing.T, rdb redis.UniversalClient, policy *Policy) (steps []turnCost) {
	t.Helper()
	b := newBench(t, rdb, Config{Unbatched: true}, policy)
	count := func(name string, f func()) {
		t.Helper()
		commands := redistest.Commands(t, rdb, f)
		for _, own := range []string{"evalsha", "eval", "script|load"} {
			delete(commands, own)
		}
		steps = append(steps, turnCost{name, commands})
	}
	ask := func(scope, ticket string, ahead int64) (d Decision) {
		return b.decide(Request{Scope: scope, Ticket: ticket, Ahead: us(ahead), Lead: us(20_000)})
	}
	waits := func(scope, ticket string) func() {
		return func() {
			if d := ask(scope, ticket, 0); d.Allowed || !d.Turn.Waits {
				t.Errorf("%s does not wait: %+v", ticket, d)
			}
		}
	}
	wake := func(want ...string) func() {
		return func() {
			woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Lead: us(20_000), Most: 10})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range woken.Released {
				got = append(got, p.Ticket)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%v were woken, want %v", got, want)
			}
		}
	}
	starts := func(scope, ticket string) func() {
		return func() {
			if d := ask(scope, ticket, 250_000); !d.Allowed {
				t.Errorf("%s does not start: %+v", ticket, d)
			}
		}
	}
	b.decide(Request{Scope: "p/a", Cost: 2})
	b.decide(Request{Scope: "p/b"}) // scripts are loaded, and all is spent
	waits("p/y", "z1")()
	waits("p/z", "z2")()
	b.now.Add(1_000_000)
	wake("z1")()
	starts("p/y", "z1")()
	wake()()
	b.now.Add(1_000_000)
	wake("z2")()
	starts("p/z", "z2")()
	wake()()

	count("first joins", waits("p/a", "a1"))
	count("a second", waits("p/a", "a2"))
	count("another tenant's", waits("p/b", "b1"))
	count("its second", waits("p/b", "b2"))
	count("comes early", waits("p/b", "b1"))
	count("look, too early", wake())
	b.now.Add(1_000_000)
	count("look", wake("a1"))
	count("start", starts("p/a", "a1"))
	b.now.Add(1_000_000)
	count("look at the next", wake("b1"))
	count("start of the next", starts("p/b", "b1"))
	b.now.Add(1_000_000)
	count("look, a line empties", wake("a2"))
	count("its start", starts("p/a", "a2"))
	b.now.Add(1_000_000)
	count("look, the last", wake("b2"))
	count("the last start", starts("p/b", "b2"))
	count("look, nobody waits", wake())

	var asks []Ask
	for i := range 100 {
		asks = append(asks, Ask{Scope: fmt.Sprintf("p/%d", i%10), Ticket: fmt.Sprint("l", i)})
	}
	count("100 line up", func() {
		if _, err := b.LineUp(ctx, asks, us(20_000), 0); err != nil {
			t.Fatal(err)
		}
	})
	count("20 starts", func() {
		for range 20 {
			b.now.Add(1_000_000)
			woken, err := b.Wake(ctx, WakeRequest{Provider: "p", Lead: us(20_000), Most: 10})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range woken.Released {
				starts(p.Scope, p.Ticket)()
			}
		}
	})
	return steps
}
