// Package inspect reads what waits: how many tasks, in which scopes, and when each is expected to start. It changes nothing.
package inspect

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/internal/wire"
)

// Reader reads the waiting tasks of a waitlist. It is safe for concurrent use. Its errors are those of a waitlist.List.
type Reader struct{ list *waitlist.List }

// Of returns the reader of a waitlist. It does no I/O.
func Of(list *waitlist.List) Reader { return Reader{list} }

const (
	// countedAtOnce is how many lines one round trip counts.
	countedAtOnce = 1000
	// countedScopes is the most scopes of a provider that are counted.
	countedScopes = 10_000
)

// queues returns the asynq queues of which tasks of a provider wait or have waited, by name.
func (r Reader) queues(ctx context.Context, provider string) (queues []string, err error) {
	var fields *redis.StringSliceCmd
	err = r.list.Read(ctx, provider, func(pipe redis.Pipeliner) { fields = pipe.HKeys(ctx, r.list.Prefix(provider)+"queues") })
	if err != nil {
		return nil, err
	}
	for _, field := range fields.Val() {
		if field != "*" && field != "#" {
			queues = append(queues, wire.Unescape(field))
		}
	}
	slices.Sort(queues)
	return queues, nil
}

// scan reads fields of a hash of a provider, until it has so many or all; more says that there are others.
func (r Reader) scan(ctx context.Context, provider, hash string, most int) (fields map[string]string, more bool, err error) {
	fields = map[string]string{}
	for cursor := uint64(0); ; {
		var page []string
		if page, cursor, err = r.list.Scan(ctx, provider, hash, cursor); err != nil {
			return nil, false, err
		}
		for two := range slices.Chunk(page, 2) {
			fields[two[0]] = two[1]
		}
		if cursor == 0 || len(fields) >= most {
			return fields, cursor != 0, nil
		}
	}
}

// lineLengths counts the tasks in the lines of scopes: the tasks of paths[i] in queues[k] are lengths[i][k].
func (r Reader) lineLengths(ctx context.Context, provider string, paths ...string) (queues []string, lengths [][]int64, err error) {
	if queues, err = r.queues(ctx, provider); err != nil {
		return nil, nil, err
	}
	cmds := make([]*redis.IntCmd, len(queues)*len(paths))
	for from := 0; from < len(cmds); from += countedAtOnce {
		err := r.list.Read(ctx, provider, func(pipe redis.Pipeliner) {
			for i := from; i < min(from+countedAtOnce, len(cmds)); i++ {
				cmds[i] = pipe.ZCard(ctx, wire.LineKey(r.list.Prefix(provider), queues[i%len(queues)], paths[i/len(queues)]))
			}
		})
		if err != nil {
			return nil, nil, err
		}
	}
	lengths = make([][]int64, len(paths))
	for i, cmd := range cmds {
		lengths[i/len(queues)] = append(lengths[i/len(queues)], cmd.Val())
	}
	return queues, lengths, nil
}

func sum(list []int64) (total int64) {
	for _, n := range list {
		total += n
	}
	return total
}
