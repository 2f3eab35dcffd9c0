package upstream_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// An API that counts requests and tokens refuses a call.
func ExampleRead() {
	header := http.Header{}
	header.Set("X-RateLimit-Limit-Requests", "60")
	header.Set("X-RateLimit-Remaining-Requests", "59")
	header.Set("X-RateLimit-Limit-Tokens", "150000")
	header.Set("X-RateLimit-Remaining-Tokens", "0")
	header.Set("X-RateLimit-Reset-Tokens", "6m0s")

	advice := upstream.Read(http.StatusTooManyRequests, header, time.Now())
	if advice.Limited && advice.RetryKnown {
		fmt.Println("stay away for", advice.Retry)
	}
	for _, q := range advice.Quotas {
		fmt.Printf("%s: %d of %d left\n", q.Unit, q.Remaining, q.Limit)
	}
	// Output:
	// stay away for 6m0s
	// requests: 59 of 60 left
	// tokens: 0 of 150000 left
}
