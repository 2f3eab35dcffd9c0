package throttle

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// countTree reads what waits below the levels of a scope's rules: see lua/include/waiting/tree.lua. Those in flight are
// charged already.
func (l *Limiter) countTree(ctx context.Context, p *plan, out *Outlook) error {
	leaf := scopePath(p.scope.String()) + "/"
	fields := []string{"n" + leaf}
	for i, key := range p.keys {
		level, _, _ := strings.Cut(key[len(p.provider):], ":")
		unit := p.states[i].Unit
		fields = append(fields, "n"+level, "u"+level+"\x00"+unit, "u"+level+"\x00*", "u"+leaf+"\x00"+unit, "u"+leaf+"\x00*")
	}
	var sums *redis.SliceCmd
	err := ReadFromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		sums = pipe.HMGet(ctx, p.provider+"!meta", fields...)
		return nil
	})
	if err != nil {
		return err
	}
	own := nodeSums(sums.Val()[0])
	out.Waiting = own.units
	for i := range out.Rules {
		at := sums.Val()[1+5*i:]
		all := nodeSums(at[0])
		out.Rules[i].Waiting, out.Rules[i].Lines, out.Rules[i].Own = all.units, all.kids, own.units
		if unit := p.states[i].Unit; unit != "" && unit != Requests {
			out.Rules[i].Waiting = max(0, all.units-sum(at[2])) + sum(at[1])
			out.Rules[i].Own = max(0, own.units-sum(at[4])) + sum(at[3])
		}
	}
	return nil
}

// nodeSum is how many children of a node have tasks, and how many requests wait below it.
type nodeSum struct{ kids, units int64 }

func nodeSums(record any) nodeSum {
	line, _, _ := strings.Cut(text(record), "\n")
	parts := strings.Split(line, " ")
	const numbers = 5 // tag, time, children, empty children, requests
	if len(parts) != numbers {
		return nodeSum{}
	}
	return nodeSum{kids: sum(parts[2]), units: sum(parts[4])}
}
