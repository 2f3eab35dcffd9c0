package inbound_test

import (
	"cmp"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/inbound"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// check ends an example that cannot go on.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Each caller of an API may make two requests an hour.
func ExampleMiddleware() {
	rules, err := limitsyaml.Parse("limits.yaml", []byte(`limits: {api: {scopes: {"*": {rules: [{name: caller, algorithm: sliding-window, limit: 2, per: 1h}]}}}}`))
	check(err)
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Addr()})
	limiter, err := throttle.New(rdb, rules, throttle.Config{Prefix: "example-" + throttle.NewID(), StartTolerance: -1})
	check(err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /quote", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "42") })
	limits := &inbound.Middleware{Limiter: limiter, LegacyHeader: true, Scope: func(r *http.Request) string {
		caller, _, _ := r.BasicAuth() // that has been checked
		return policy.JoinScope("api", cmp.Or(caller, "unknown"))
	}}
	server := httptest.NewServer(limits.Wrap(mux))
	defer server.Close()

	for _, caller := range []string{"anna", "anna", "anna", "ben"} {
		r, err := http.NewRequest(http.MethodGet, server.URL+"/quote", nil)
		check(err)
		r.SetBasicAuth(caller, "secret")
		resp, err := http.DefaultClient.Do(r)
		check(err)
		check(resp.Body.Close())
		fmt.Printf("%s %d, %s left, again after %q\n", caller, resp.StatusCode, resp.Header.Get("X-RateLimit-Remaining"), resp.Header.Get("Retry-After"))
	}
	// Output:
	// anna 200, 1 left, again after ""
	// anna 200, 0 left, again after ""
	// anna 429, 0 left, again after "3600"
	// ben 200, 1 left, again after ""
}
