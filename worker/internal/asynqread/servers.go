package asynqread

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/worker/internal/asynqx"
)

// ServerInfo is one of asynq's servers, as it wrote some seconds ago.
type ServerInfo struct {
	Host, Status             string
	PID, Concurrency, Active int
	Queues                   map[string]int // their weights
	Started                  time.Time
}

// serversKey is the sorted set of the keys of asynq's servers, by the second in which each expires.
const serversKey = "asynq:servers"

// ServerKeys returns the keys of the first most live servers, and how many there are. Costs one round trip of two commands.
func ServerKeys(ctx context.Context, rdb redis.UniversalClient, now time.Time, most int) (keys []string, all int, err error) {
	var list *redis.StringSliceCmd
	var n *redis.IntCmd
	from := strconv.FormatInt(now.Unix(), 10)
	_, err = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		n = pipe.ZCount(ctx, serversKey, from, "+inf")
		list = pipe.ZRangeByScore(ctx, serversKey, &redis.ZRangeBy{Min: from, Max: "+inf", Count: int64(most)})
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return list.Val(), int(n.Val()), nil
}

// ReadServers returns the servers of some keys, without those that have gone. Costs one round trip of a command a server.
func ReadServers(ctx context.Context, rdb redis.UniversalClient, keys []string) (servers []ServerInfo, err error) {
	texts, err := readEach(ctx, rdb, keys, func(pipe redis.Pipeliner, key string) *redis.StringCmd { return pipe.Get(ctx, key) })
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	for _, text := range texts {
		if s, ok := readServerInfo([]byte(text.Val())); ok && text.Err() == nil {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

// readServerInfo reads what a server writes of itself (asynq v0.25 and v0.26, internal/proto/asynq.proto).
// It returns false if it is not asynq's.
func readServerInfo(text []byte) (s ServerInfo, ok bool) {
	s.Queues = map[string]int{}
	ok = asynqx.EachField(text, func(f asynqx.Field) bool {
		switch f.Number {
		case 1:
			s.Host = string(f.Bytes)
		case 2:
			s.PID = int(int32(f.N)) //nolint:gosec // as protobuf has it
		case 4:
			s.Concurrency = int(int32(f.N)) //nolint:gosec // as protobuf has it
		case 5:
			name, weight, is := readEntry(f.Bytes)
			s.Queues[name] = int(int32(weight.N)) //nolint:gosec // as protobuf has it
			return is
		case 7:
			s.Status = string(f.Bytes)
		case 8:
			var is bool
			s.Started, is = readTimestamp(f.Bytes)
			return is
		case 9:
			s.Active = int(int32(f.N)) //nolint:gosec // as protobuf has it
		}
		return true
	})
	return s, ok
}

// Starts returns when the tasks that servers run were picked up, by the keys of these servers, as they wrote some seconds ago. Costs one
// round trip of a command a server.
func Starts(ctx context.Context, rdb redis.UniversalClient, keys []string) (map[TaskRef]time.Time, error) {
	texts, err := readEach(ctx, rdb, keys, func(pipe redis.Pipeliner, key string) *redis.StringSliceCmd {
		return pipe.HVals(ctx, "asynq:workers"+strings.TrimPrefix(key, serversKey))
	})
	starts := map[TaskRef]time.Time{}
	for _, some := range texts {
		for _, text := range some.Val() {
			if task, at, ok := readStart([]byte(text)); ok {
				starts[task] = at
			}
		}
	}
	return starts, err
}

// readStart reads what a server writes of a task that it runs (asynq v0.25 and v0.26, internal/proto/asynq.proto).
func readStart(text []byte) (task TaskRef, at time.Time, ok bool) {
	ok = asynqx.EachField(text, func(f asynqx.Field) (is bool) {
		switch f.Number {
		case 4:
			task.ID = string(f.Bytes)
		case 7:
			task.Queue = string(f.Bytes)
		case 8:
			at, is = readTimestamp(f.Bytes)
			return is
		}
		return true
	})
	return task, at, ok
}

func readTimestamp(text []byte) (at time.Time, ok bool) {
	var seconds, nanos int64
	ok = asynqx.EachField(text, func(f asynqx.Field) bool {
		switch f.Number {
		case 1:
			seconds = int64(f.N) //nolint:gosec // as protobuf has it
		case 2:
			nanos = int64(f.N) //nolint:gosec // as protobuf has it
		}
		return true
	})
	return time.Unix(seconds, nanos), ok
}
