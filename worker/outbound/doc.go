// Package outbound runs tasks of type http, each of which is one outbound request.
//
// A Handler is an asynq.Handler. It does not handle limits: it is meant to run behind package worker's
// middleware, which charges the task when it starts, so that one charge is one call of ProcessTask.
//
// Each guarantee below names the test that checks it; TestNamedTestsExist (`test/project`) checks that
// the names exist.
//
// # One charge is at most one request sent
//
// net/http's Transport sends a request again by itself if a kept connection fails before the answer
// came, for GET, HEAD, OPTIONS and TRACE and for any method with an Idempotency-Key or
// X-Idempotency-Key header (persistConn.shouldRetryRequest and Request.isReplayable in net/http, read
// at Go 1.26). That cannot be
// switched off, so the socket decides: the first byte of a request claims its permit for one
// connection, and no other connection accepts a byte of it (TestOneChargeIsAtMostOneRequest). The
// run then fails, and asynq's retry, which is
// charged anew, decides about another request. Only a request of which no byte was accepted goes out
// on another connection within the same run (TestUnsentRequestGoesOutOnAnotherConnection).
//
// HTTP/2 is off, also if a server offers it (TestTLS, TestNoProxyNoHTTP2): its client repeats requests
// by its own rules (http2shouldRetryRequest), and mixes the requests of one connection, so that a
// written byte could not be attributed to one charge. Redirects are not followed
// (TestRedirectsAreNotFollowed).
//
// # What is sent
//
// The method is one of RFC 9110 or PATCH, or one that Config.AllowMethods lists: any other word may be
// a command to a server that does not speak HTTP (TestMethodsAreAList). CONNECT opens a tunnel, and an
// answer to TRACE returns credentials: both are always refused. A URL with a raw space, quote,
// backslash or control character is refused (TestBadPayloadSaysWhichField).
//
// # What an answer means
//
// 2xx is success; 408, 425, 5xx and whatever says "later" are a *StatusError that is tried again; any other answer is a
// *StatusError with asynq.SkipRetry (TestStatuses, TestStatusErrorText). Package upstream parses when
// to come back, at most 24 hours later (TestRetryAfter). Config.Told is called with each answer
// (TestAPIPauses). Only the status decides: a body that breaks off or does not end in time turns
// no success into a failure (TestBodyThatBreaksOffChangesNothing, TestEndlessAnswerEndsWithTheRun).
//
// A request that got no answer is retried. If a run ends before the answer, its error says after how
// long and what it waited for, and wraps the deadline, or the cancellation and its cause
// (TestTimeoutSaysHowLongAndForWhat, TestCancellationIsNotHidden). A
// context without a deadline gets 30 seconds (TestWithoutDeadlineThirtySeconds). A payload that is no
// request is a *PayloadError with asynq.SkipRetry that names the field (TestBadPayloadSaysWhichField).
//
// # Connections
//
// Tasks share kept connections (TestOneConnectionForManyTasks). At most 1 MiB of an answer's
// body is read (TestHugeAnswerIsCutShort), and at most 64 KiB of its header lines
// (TestHeaderFloodEnds). Nothing is decompressed (TestCompressedAnswerStaysCompressed). A server
// cannot hold a run beyond its deadline (TestEndlessAnswerEndsWithTheRun,
// TestSwitchingProtocolsDoesNotHang). Bytes that a server sends after one answer are never taken for
// the answer to the next task (TestAnswersAreNotMixedUp).
//
// TLS is 1.2 or newer, and certificates are verified against the system's roots (TestTLS). No proxy is
// used, not even the environment's (TestNoProxyNoHTTP2).
//
// # Addresses
//
// Addresses that are not public are refused when the socket connects, after the name was resolved:
// loopback, private, link-local, shared, multicast, reserved and the like, in IPv4, in IPv6, and as an
// IPv4 address inside an IPv6 one (TestRefusal, TestAddressesThatAreRefused,
// TestNamesThatResolveToRefusedAddresses). Each time, the judged address is the dialled one, so that a
// name cannot change its meaning in between (TestRebindingIsRefused). Of a name with several
// addresses, the public ones are used (TestMixedAnswersUseThePublicOne). Hosts first go through IDNA's
// lookup profile, so that no resolver sees other digits than this package (TestHostsGoThroughIDNA),
// and numbers that only some systems parse as addresses are refused
// (TestOddSpellingsOfAddressesAreRefused). The refusal is a *BlockedError with asynq.SkipRetry.
// Config.AllowHosts makes exceptions, by the host's name as the URL has it (TestAllowHosts,
// TestParseHosts).
//
// The addresses of the machine's own interfaces are refused in the same way, public ones too
// (TestOwnAddressesAreRefused). They are read when a connection is made; if they cannot be read, nothing
// is dialled (TestOwnAddressesAreFresh).
//
// Config.OnlyHosts and Config.Ports restrict what may be dialled, and are checked before the name is
// resolved (TestOnlyHosts, TestPorts); Config.DenyCIDRs is checked with the address (TestDenyCIDRs).
// All three take precedence over AllowHosts.
//
// # Secrets
//
// Header values, the URL's userinfo, query and fragment, and the body never appear in an error or a
// log record. If an answer, or an error of net/http, returns any of them, it is replaced by
// [redacted]: whole, in another case, escaped as in JSON, HTML or a URL, or as in two of them
// (TestHideEscaped), or any part of at least eight bytes. A secret below four bytes is replaced only
// if it is a word of its own (TestSecretsNeverStandInErrors, TestBadPayloadSaysWhichField,
// TestHide, and FuzzHide against a search without shortcuts). Any white space within counts as one
// byte. Of the body, values of at least four bytes are replaced, and parts of at least sixteen; field
// names stay readable. A secret that cannot be recognised is not hidden: one that the API encodes or
// hashes, or a shorter part of one.
//
// The work of hiding is proportional to the sizes of request and answer, some 0.1 s of a processor at
// most (TestHidingIsLinear). The answer to a request of more than 512 KiB of URL, headers and body is
// not shown, and the error says so (TestOfHugeRequestsNoAnswerIsShown).
//
// Errors name a request by method, scheme, host and path, so these are not secret, except segments of
// the path that look like keys, as in webhooks: longer than 20 bytes, with letters and digits mixed in
// 8 bytes or more, or with more than 10 digits (TestShownPath, TestSecretsNeverStandInErrors). A
// key of up to 20 letters without a digit looks like a word, and is shown. Nothing is printed through
// package log (TestMain fails if net/http does). Debug records contain method, host, status and
// elapsed_ms (TestDebugRecord).
package outbound
