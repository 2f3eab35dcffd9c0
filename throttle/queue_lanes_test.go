package throttle

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// lane adds tasks of a lane to the line of p/a.
func (f *fairWorld) lane(name string, n int) {
	for range n {
		f.ask(f.inLane(name), comes, 0, 0)
	}
}

func (f *fairWorld) inLane(name string) *waiter {
	t := &waiter{WaiterRef: WaiterRef{Scope: "p/a", ID: fmt.Sprintf("t%03d", len(f.tasks)), cost: 1}, lane: name}
	f.queueWorld.add(t)
	return t
}

// planLane is lane for those who line up before they are enqueued.
func (f *fairWorld) planLane(name string, n int) {
	var tasks []*waiter
	for range n {
		tasks = append(tasks, f.inLane(name))
	}
	f.join(tasks, 0)
}

// lanes are the lanes of those who started.
func (f *fairWorld) lanes() (names []string) {
	for _, p := range f.started {
		names = append(names, f.byTicket[p.ID].lane)
	}
	return names
}

// lanesFair: in no interval of the starts are two of the lanes further apart than by a task of
// each, and one that has come meanwhile.
func (f *fairWorld) lanesFair(lanes ...string) {
	for i, a := range lanes {
		for _, b := range lanes[i+1:] {
			ahead, least, most := 0, 0, 0
			for at, lane := range f.lanes() {
				switch lane {
				case a:
					ahead += strides[a]
				case b:
					ahead -= strides[b]
				}
				least, most = min(least, ahead), max(most, ahead)
				if most-least > strides[a]+strides[b] {
					fail("by start %d %s and %s are %d apart: %s", at, a, b, most-least, strings.Join(f.lanes(), " "))
				}
			}
		}
	}
}

// ofEvery60: of any 60 starts in a row the lanes have 36, 18 and 6, give or take one.
func (f *fairWorld) ofEvery60() {
	lanes := f.lanes()
	for from := 0; from+60 <= len(lanes); from++ {
		for lane, want := range map[string]float64{"critical": 36, "default": 18, "low": 6} {
			n := 0
			for _, one := range lanes[from : from+60] {
				n += strings.Count(one, lane)
			}
			if math.Abs(float64(n)-want) > 1 {
				fail("of 60 starts from %d on %d are of %s, and should be %v: %v", from, n, lane, want, lanes)
			}
		}
	}
}

var laneScenes = []struct {
	name string
	play func(f *fairWorld)
}{
	// Lanes share the starts of their line by their strides, whoever came first.
	{"one after the other", func(f *fairWorld) {
		f.lane("low", 12)
		f.lane("default", 30)
		f.lane("critical", 60)
		f.run(90, func(WaiterRef) {})
		f.ofEvery60()
		f.lanesFair("critical", "default", "low")
	}},
	{"planned in one call", func(f *fairWorld) {
		var tasks []*waiter
		for i := range 200 {
			tasks = append(tasks, f.inLane([]string{"low", "default", "critical", "critical", "critical"}[i%5]))
		}
		f.join(tasks, 0)
		f.run(70, func(WaiterRef) {})
		f.ofEvery60()
		f.lanesFair("critical", "default", "low")
	}},
	{"as they start", func(f *fairWorld) {
		for _, lane := range []string{"low", "default", "critical"} {
			f.lane(lane, 6)
		}
		f.run(90, func(p WaiterRef) { f.lane(f.byTicket[p.ID].lane, 1) })
		f.ofEvery60()
		f.lanesFair("critical", "default", "low")
	}},
	// A lane that comes late has its turn at once, and no credit for the time before.
	{"late", func(f *fairWorld) {
		f.lane("low", 30)
		f.lane("default", 60)
		f.run(40, func(WaiterRef) {})
		f.started = nil
		f.lane("critical", 30)
		f.run(40, func(WaiterRef) {})
		f.lanesFair("critical", "default", "low")
		if first := slices.Index(f.lanes(), "critical"); first > 2 {
			fail("its first is number %d: %v", first, f.lanes())
		}
	}},
	// One that comes, has its turn and comes again gains nothing.
	{"one at a time", func(f *fairWorld) {
		f.lane("critical", 60)
		f.lane("low", 1)
		f.run(50, func(p WaiterRef) {
			if lane := f.byTicket[p.ID].lane; lane == "low" {
				f.lane(lane, 1)
			}
		})
		f.lanesFair("critical", "low")
	}},
	// Who came back to the front is before a lane's first task.
	{"back at the front", func(f *fairWorld) {
		f.lane("low", 10)
		for range 3 {
			f.run(len(f.started)+1, func(WaiterRef) {})
			f.giveBack(f.byTicket[f.started[len(f.started)-1].ID])
		}
		for _, p := range f.started {
			t := f.byTicket[p.ID]
			f.ask(t, rejoins, 0, 0)
		}
		f.started = nil
		f.lane("critical", 10)
		f.run(3, func(WaiterRef) {})
		if got := strings.Join(f.lanes(), " "); got != "low low low" {
			fail("%s", got)
		}
	}},
	// Tasks without a lane are where they came, before and behind those of lanes.
	{"no lane", func(f *fairWorld) {
		f.lane("low", 5)
		f.lane("", 5)
		f.lane("critical", 5)
		f.planLane("", 5)
		f.planLane("default", 5)
		f.run(25, func(WaiterRef) {})
		if got := strings.Join(f.lanes(), " "); got != strings.ReplaceAll("low low low low low - - - - - critical critical critical critical critical - - - - - default default default default default", "-", "") {
			fail("%q", got)
		}
	}},
	// Priorities count before lanes.
	{"priorities", func(f *fairWorld) {
		f.lane("critical", 5)
		urgent := f.inLane("low")
		urgent.priority = 1
		f.ask(urgent, comes, 0, 0)
		f.run(6, func(WaiterRef) {})
		if got := f.lanes(); got[0] != "low" {
			fail("priority 1 goes first: %v", got)
		}
	}},
	// Of more lanes than there is room for the others go to the end, and nothing is lost.
	{"many lanes", func(f *fairWorld) {
		for i := range 80 {
			f.lane(fmt.Sprintf("lane %d", i%40), 1)
		}
		if lanes := f.meta()["Q/a"]; len(lanes) > 32*(7+len("lane%20NN")+1) {
			fail("%d bytes are kept", len(lanes))
		}
		f.run(80, func(WaiterRef) {})
		at := map[string]int{}
		for i, p := range f.started {
			lane, n := f.byTicket[p.ID].lane, 0
			if _, err := fmt.Sscanf(p.ID, "t%d", &n); err != nil || at[lane] > n {
				fail("start %d: %s of %s is before its turn", i, p.ID, lane)
			}
			at[lane] = n
		}
	}},
	// Nor do those count that have no tasks in line any more.
	{"lanes that come and go", func(f *fairWorld) {
		f.lane("low", 60)
		for i := range 40 {
			f.lane(fmt.Sprintf("lane %d", i), 1)
			f.run(len(f.started)+1, func(WaiterRef) {})
		}
		f.started = nil
		f.lane("critical", 10)
		f.run(10, func(WaiterRef) {})
		f.lanesFair("critical", "low")
	}},
	// What is known of lanes is forgotten with the line.
	{"forgotten", func(f *fairWorld) {
		f.add("p/b", 1, 0)
		f.lane("low", 5)
		f.lane("critical", 1)
		f.run(14, func(WaiterRef) { f.add("p/b", 1, 0) })
		for field := range f.meta() {
			if field[0] == 'Q' && len(f.seen.queues["/a"]) == 0 {
				fail("%q is kept", field)
			}
		}
	}},
}

func laneFault(rdb redis.UniversalClient, prefix string) string {
	for i, s := range laneScenes {
		limits := map[string]policy.ScopeConfig{"p": {Rules: bigBucket}}
		found := faultOf(func() {
			s.play(newFairWorld(rdb, fmt.Sprintf("%slane%d", prefix, i), limits, []string{"p/a", "p/b"}))
		})
		if found != "" {
			return s.name + ": " + found
		}
	}
	return ""
}

// Lanes of a line share its starts by their strides; within a lane the first come goes first.
func TestLanes(t *testing.T) {
	t.Parallel()
	if found := laneFault(redistest.Client(t), redistest.Prefix(t)); found != "" {
		t.Error(found)
	}
}

// What is expected of a task's start goes by its lane and by its priority.
func TestLanesAreExpected(t *testing.T) {
	t.Parallel()
	onBoth(t, Config{}, policyOf(t, policy.Rule{Name: "r", Algorithm: policy.TokenBucket, Limit: 1, Per: sec}), func(b *bench) {
		b.decide(Request{Scope: "p"})
		lineUp := func(lane string, priority, n int) (last Joined) {
			var asks []Waiter
			for i := range n {
				asks = append(asks, Waiter{Scope: "p", ID: fmt.Sprint(lane, priority, i), Lane: lane, Stride: strides[lane], Priority: priority})
			}
			placed, err := b.Waitlist().Join(ctx, asks, 0, 0)
			noError(b.t, err)
			return placed[n-1]
		}
		about := func(what string, got, want float64) {
			b.t.Helper()
			if math.Abs(got-want) > 2 {
				b.t.Errorf("%s is expected in %.1f s, want about %.0f", what, got, want)
			}
		}
		about("the last of low", lineUp("low", 0, 100).Expected.Seconds(), 100)
		about("critical, six for one of low", lineUp("critical", 0, 30).Expected.Seconds(), 35)
		about("one that goes before all", lineUp("", 1, 2).Expected.Seconds(), 2)
		about("one that goes behind all", lineUp("", -1, 1).Expected.Seconds(), 133)
		d := b.decide(Request{Scope: "p", Turn: Turn{WaiterID: "own", Lane: "default", Stride: 2}})
		about("the first of default", d.Position.Expected.Seconds(), 4)
	})
}
