package throttle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle/policy"
)

// treeSeen is what Redis holds of those who wait, read independently of the scripts.
type treeSeen struct {
	queues   map[string][]redis.Z // by scope path
	heap     map[string]bool
	schedule map[string]float64
	nodes    map[string]nodeSeen
	flight   map[string]inFlight // by scope path, 0, ticket
	overdue  map[string]float64
	parked   map[string]float64
}

type nodeSeen struct {
	tag, time, kids, past, units int64
	tokens                       int64 // of those that cost by unit
	states                       map[string]stateSeen
}

type stateSeen struct {
	band    int64
	blocked bool
	cost    int64
	unit    string
}

func readNode(v string) nodeSeen {
	lines := strings.Split(v, "\n")
	n := nodeSeen{states: map[string]stateSeen{}}
	_, err := fmt.Sscan(lines[0], &n.tag, &n.time, &n.kids, &n.past, &n.units)
	must(err)
	if _, sums, is := strings.Cut(lines[0], " tokens="); is {
		_, err := fmt.Sscan(sums, &n.tokens)
		must(err)
	}
	for _, line := range lines[1:] {
		parts := strings.Split(line, " ")
		s := stateSeen{blocked: len(parts) > 2}
		_, err := fmt.Sscan(parts[1], &s.band)
		must(err)
		if s.blocked {
			_, err := fmt.Sscan(parts[2], &s.cost)
			must(err)
			s.unit = parts[3]
		}
		n.states[parts[0]] = s
	}
	return n
}

func readTree(rdb redis.UniversalClient, prefix string, scopes []string) treeSeen {
	provider := keyspace(prefix).provider("p")
	queues := make([]*redis.ZSliceCmd, len(scopes))
	var heap *redis.StringSliceCmd
	var schedule, overdue, parked *redis.ZSliceCmd
	var meta, flight *redis.MapStringStringCmd
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, scope := range scopes {
			queues[i] = pipe.ZRangeWithScores(ctx, provider+scopePath(scope)+"!queue", 0, -1)
		}
		heap = pipe.ZRange(ctx, provider+"!heap", 0, -1)
		schedule = pipe.ZRangeWithScores(ctx, provider+"!schedule", 0, -1)
		overdue = pipe.ZRangeWithScores(ctx, provider+"!overdue", 0, -1)
		parked = pipe.ZRangeWithScores(ctx, provider+"!parked", 0, -1)
		meta, flight = pipe.HGetAll(ctx, provider+"!meta"), pipe.HGetAll(ctx, provider+"!flight")
		return nil
	})
	must(err)
	s := treeSeen{
		queues: map[string][]redis.Z{}, heap: map[string]bool{}, schedule: scoresOf(schedule.Val()), nodes: map[string]nodeSeen{},
		flight: map[string]inFlight{}, overdue: scoresOf(overdue.Val()), parked: scoresOf(parked.Val()),
	}
	for i, scope := range scopes {
		if q := queues[i].Val(); len(q) > 0 {
			s.queues[scopePath(scope)] = q
		}
	}
	for _, member := range heap.Val() {
		s.heap[member] = true
	}
	for field, v := range meta.Val() {
		if field[0] == 'n' {
			s.nodes[field[1:]] = readNode(v)
		}
	}
	for field, v := range flight.Val() {
		if field[0] != '=' {
			s.flight[field], err = readInFlight(v)
			must(err)
		}
	}
	return s
}

func scoresOf(list []redis.Z) map[string]float64 {
	scores := map[string]float64{}
	for _, z := range list {
		scores[text(z.Member)] = z.Score
	}
	return scores
}

const (
	treeBand   = 1 << 32
	treeLowest = 1 << 20
)

func bandOf(score float64) int64 { return (int64(score) + treeLowest*treeBand) / treeBand }

// entries are those listed below a node for a signature: the children by their ranks.
func (s treeSeen) entries(id, sig string) (out []string) {
	from := id + "\x00" + sig + "\x00"
	for member := range s.heap {
		if strings.HasPrefix(member, from) {
			out = append(out, member[len(from):])
		}
	}
	slices.Sort(out)
	return out
}

// faults says what of the tree contradicts the queues.
func (s treeSeen) faults(signature func(path string, ticket string) string, loose map[string]bool) (out []string) {
	fault := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	kids, units, sums := map[string]map[string]bool{}, map[string]int64{}, map[string]int64{}
	for path, q := range s.queues {
		first := text(q[0].Member)
		leaf := path + "/"
		node, known := s.nodes[leaf]
		want := signature(path, first)
		if !loose[path] && (!known || len(node.states) != 1 || node.states[want].band != bandOf(q[0].Score) || node.states[want].blocked) {
			fault("queue %q begins with %q of band %d and signature %q, and its leaf is %+v", path, first, bandOf(q[0].Score), want, node)
		}
		var waits, tokens int64
		for _, z := range q {
			place := readPlace("", text(z.Member))
			waits += place.under(policy.Rule{Algorithm: policy.TokenBucket})
			if costs, err := policy.ParseCosts(place.costs); place.costs != "" && err == nil {
				tokens += costs.Of("tokens")
			}
		}
		for id, up := leaf, ""; ; id = up {
			units[id] += waits
			sums[id] += tokens
			i := strings.LastIndex(id, "/")
			if i < 0 {
				break
			}
			up = id[:i]
			if kids[up] == nil {
				kids[up] = map[string]bool{}
			}
			kids[up][id] = true
		}
		kids[leaf] = map[string]bool{"": true}
	}
	if len(s.queues) == 0 {
		if len(s.heap)+len(s.schedule)+len(s.nodes) > 0 {
			fault("nobody waits, and there is %v %v %v", s.heap, s.schedule, s.nodes)
		}
		return out
	}
	for id, want := range sums {
		if got := s.nodes[id].tokens; got != want {
			fault("%d tokens wait below node %q, and it says %d", want, id, got)
		}
	}
	listed, blocked := 0, 0
	for id, node := range s.nodes {
		if int(node.kids) != len(kids[id]) {
			fault("node %q has %d children with tasks, and says %d", id, len(kids[id]), node.kids)
		}
		if node.units != units[id] {
			fault("%d units wait below node %q, and it says %d", units[id], id, node.units)
		}
		if past := s.entries(id, "!"); !strings.HasSuffix(id, "/") && len(past) != int(node.past) {
			fault("node %q has %d empty nodes, and says %d", id, len(past), node.past)
		}
		leaf := strings.HasSuffix(id, "/")
		sigs := map[string]bool{}
		for member := range s.heap {
			if rest, is := strings.CutPrefix(member, id+"\x00"); is {
				sig, _, _ := strings.Cut(rest, "\x00")
				sigs[sig] = true
			}
		}
		for sig := range sigs {
			if _, is := node.states[sig]; !is && sig != "!" && !leaf {
				fault("node %q has children for %q, and no state: %q", id, sig, s.entries(id, sig))
			}
		}
		for sig, state := range node.states {
			children := s.entries(id, sig)
			if len(children) == 0 && !leaf {
				fault("node %q has a state for %q, and no children", id, sig)
			}
			if _, is := s.schedule[id+"\x00"+sig]; is != state.blocked {
				fault("node %q is blocked for %q: %v, and is in the schedule: %v", id, sig, state.blocked, is)
			}
			if state.blocked {
				blocked++
				continue
			}
			listed++
			if id == "" {
				fault("the provider is listed")
				continue
			}
			up := id[:strings.LastIndex(id, "/")]
			member := up + "\x00" + sig + "\x00" + rankText(state.band, node.tag) + id
			if !s.heap[member] {
				fault("node %q is not among its siblings for %q: %q", id, sig, s.entries(up, sig))
			}
			if !leaf && len(children) > 0 && children[0][:7] != fmt.Sprintf("%07d", state.band) {
				fault("node %q is of band %d, and its first child of %q", id, state.band, children[0])
			}
		}
		if node.kids == 0 {
			up := id[:strings.LastIndex(id, "/")]
			if !s.heap[up+"\x00!\x00"+rankText(0, node.tag)+id] {
				fault("node %q has no tasks, and is not to be forgotten", id)
			}
		}
	}
	empty := 0
	for member := range s.heap {
		if _, rest, _ := strings.Cut(member, "\x00"); strings.HasPrefix(rest, "!\x00") {
			empty++
		}
	}
	if len(s.heap) != listed+empty {
		fault("the heap has %d members, and %d are listed and %d empty: %v", len(s.heap), listed, empty, s.heap)
	}
	if len(s.schedule) != blocked {
		fault("%d nodes are blocked, and the schedule has %v", blocked, s.schedule)
	}
	for id := range kids {
		if _, is := s.nodes[id]; !is {
			fault("node %q has tasks, and no record", id)
		}
	}
	for field, g := range s.flight {
		if _, is := s.overdue[field]; !is {
			fault("%q is in flight since %d, and never overdue", field, g.granted)
		}
		path, ticket, _ := strings.Cut(field, "\x00")
		if slices.ContainsFunc(s.queues[path], func(z redis.Z) bool { return z.Member == ticket }) {
			fault("%q is in flight, and in its queue", field)
		}
	}
	for field := range s.overdue {
		if _, is := s.flight[field]; !is {
			fault("%q is overdue, and not in flight", field)
		}
	}
	for field := range s.parked {
		path, ticket, _ := strings.Cut(field, "\x00")
		if slices.ContainsFunc(s.queues[path], func(z redis.Z) bool { return z.Member == ticket }) {
			fault("%q is parked, and in its queue", field)
		}
	}
	return out
}

func rankText(band, tag int64) string { return fmt.Sprintf("%07d%016d", band, tag) }
