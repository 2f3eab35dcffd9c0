package dialect

import (
	"time"

	"github.com/headway-go/headway/throttle/upstream"
)

// Salesforce counts the requests of an organization in the last 24 hours, and requests in progress that take 20 seconds and more: 25,
// in developer and trial organizations 5. Both are refused with 403 and the code REQUEST_LIMIT_EXCEEDED, or by the SOAP API with 500;
// the message tells them apart, and there is no time. A third message is about Apex code that runs for 5 seconds and more, so only the
// scope of the call waits. The messages are not on Salesforce's pages, but in many clients. An error of a query may repeat any word of
// the query, so the cases take whole sentences, the code at its place in JSON, and the end of an element in XML. Sforce-Limit-Info
// says how many requests of the day are used.
var salesforce = &Dialect{
	Name:   "salesforce",
	Source: "https://developer.salesforce.com/docs/platform/salesforce-app-limits-cheatsheet/guide/salesforce-app-limits-platform-api.html",
	Date:   "2026-11",
	Table: upstream.Table{
		Cases: []upstream.Case{
			{Body: "ConcurrentRequests (Concurrent API Requests) Limit exceeded", Wait: 10 * time.Second, Scope: upstream.ScopeTop},
			{Body: "ConcurrentPerOrgLongTxn Limit exceeded", Wait: 10 * time.Second},
			// The window slides, so some of the day comes back each minute.
			{JSON: "errorCode=REQUEST_LIMIT_EXCEEDED", Wait: time.Minute, Scope: upstream.ScopeTop},
			{Body: "REQUEST_LIMIT_EXCEEDED</", Wait: time.Minute, Scope: upstream.ScopeTop},
		},
		NamePaths: []string{"errorCode"},
	},
}
