// An API that says slow down to one program: another one, with a limiter of its own and the
// same Redis, heeds it without having asked.
//
//	go run ./examples/slow-down
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/roundtrip"
)

func main() {
	server := miniredis.NewMiniRedis() // in process, so that the example needs no Redis
	server.ClockTTL(true)
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	if err := run(context.Background(), os.Stdout, server.Addr()); err != nil {
		log.Fatal(err)
	}
}

// program is a client under limits, as one of several programs has it. A refusal leaves 70 % of
// the plan, and while calls go through it grows again, up to half as much as was bought.
func program(addr string) (*http.Client, error) {
	policy, err := limitsyaml.Parse("limits.yaml", []byte(
		"limits: {prices: {answers: {cut: 30%, most: 150%}, rules: [{name: plan, algorithm: sliding-window, limit: 100, per: 1s}]}}"))
	if err != nil {
		return nil, err
	}
	limiter, err := throttle.New(redis.NewClient(&redis.Options{Addr: addr}), policy, throttle.Config{})
	if err != nil {
		return nil, err
	}
	return roundtrip.Wrap(http.DefaultClient, limiter, "prices"), nil
}

func run(ctx context.Context, out io.Writer, addr string) error {
	var calls atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer api.Close()
	for i := range 2 {
		client, err := program(addr)
		if err != nil {
			return err
		}
		began := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, api.URL, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		fmt.Fprintf(out, "program %d: %d, waited: %t\n", i+1, resp.StatusCode, time.Since(began) > time.Second/2)
	}
	return nil
}
