package redistest

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// askBound is how long one question to a server may take that may be down or frozen.
const askBound = 250 * time.Millisecond

// TakesWrite says whether the server itself takes a write of key now, which it keeps for a
// minute. It asks over a connection of its own and waits a quarter of a second at most, so it
// may be asked of a server that is down, frozen, full, read-only, or not the owner of the slot.
func (s *Server) TakesWrite(key string) bool {
	return s.ask(func(ctx context.Context, c *redis.Client) error { return c.Set(ctx, key, "", time.Minute).Err() }) == nil
}

// field is one value of INFO, "" where the server does not answer.
func (s *Server) field(section, name string) (value string) {
	_ = s.ask(func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, section).Result()
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(line, name+":"); ok {
				value = strings.TrimSpace(v)
			}
		}
		return err
	})
	return value
}

// ask has f talk to the server over a connection of its own, once and in a short time.
func (s *Server) ask(f func(context.Context, *redis.Client) error) error {
	opts := s.clientOptions()
	opts.MaxRetries, opts.DialerRetries, opts.ContextTimeoutEnabled = -1, 1, true
	c := redis.NewClient(opts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), askBound)
	defer cancel()
	return f(ctx, c)
}
