package roundtrip_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/roundtrip"
)

// check ends an example that cannot go on.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A request is charged the most that it may take. Its answer tells what it took.
func ExampleTransport_settle() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"text": "hello", "usage": {"total_tokens": 150}}`)
	}))
	defer api.Close()
	const limits = `limits: {llm: {rules: [{name: tokens, algorithm: sliding-window, limit: 1000, per: 1h, unit: tokens}]}}`
	pol, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	check(err)
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	limiter, err := throttle.New(rdb, pol, throttle.Config{Prefix: "example-" + throttle.NewID()})
	check(err)
	client := &http.Client{Transport: &roundtrip.Transport{
		Limiter: limiter,
		Refuse:  true, // two estimates are more than the limit
		Scope:   func(*http.Request) string { return "llm" },
		Costs:   func(*http.Request) policy.Costs { return policy.Costs{"tokens": 800} },
		Settle: func(resp *http.Response) (policy.Costs, bool) {
			var answer struct {
				Usage *struct {
					TotalTokens int64 `json:"total_tokens"`
				}
			}
			if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Usage == nil {
				return nil, false // it stays as it was estimated
			}
			return policy.Costs{"tokens": answer.Usage.TotalTokens}, true
		},
	}}
	for range 2 {
		resp, err := client.Post(api.URL, "application/json", strings.NewReader("{}"))
		check(err)
		_, _ = io.Copy(io.Discard, resp.Body) // or whatever becomes of it
		check(resp.Body.Close())              // an error leaves the charge as estimated
		d, err := limiter.Peek(context.Background(), throttle.Request{Scope: "llm", Costs: policy.Costs{"tokens": 1}})
		check(err)
		fmt.Println(d.Rules[0].Remaining, "tokens remain")
	}
	// Output:
	// 850 tokens remain
	// 700 tokens remain
}
