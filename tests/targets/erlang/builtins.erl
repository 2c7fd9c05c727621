%% Calls what is written in C and runs on the C stack: each function by work/1, in turns.
%%
%%   erlc builtins.erl && erl -noshell +S 1 -pa . -run builtins main [SECONDS]
-module(builtins).
-export([main/1, work/1, sorts/0, tables/1, binaries/0, expressions/0, errors/0, numbers/0, spawns/0, garbage/1]).

main([Seconds]) ->
    io:format("ready pid=~s~n", [os:getpid()]),
    Table = ets:new(table, [set, public]),
    [spawn_link(fun() -> work(Table) end) || _ <- lists:seq(1, 2)],
    timer:sleep(1000 * list_to_integer(Seconds)),
    halt(0).

work(Table) ->
    sorts(),
    tables(Table),
    binaries(),
    expressions(),
    errors(),
    numbers(),
    spawns(),
    garbage(50),
    work(Table).

sorts() ->
    lists:sort([erlang:phash2({N, sorts}) || N <- lists:seq(1, 400)]),
    ok.

tables(Table) ->
    [ets:insert(Table, {N, N * 2}) || N <- lists:seq(1, 400)],
    [ets:lookup(Table, N) || N <- lists:seq(1, 400)],
    ok.

binaries() ->
    Binary = term_to_binary(lists:seq(1, 1000)),
    [_ | _] = binary_to_term(Binary),
    byte_size(base64:encode(Binary)).

expressions() ->
    [re:run(<<"hello world foo bar">>, <<"fo+">>) || _ <- lists:seq(1, 100)],
    ok.

errors() ->
    [try raise(N) catch throw:{odd, Odd} -> Odd; error:badarith -> 0 end || N <- lists:seq(1, 400)],
    ok.

raise(N) when N rem 2 =:= 1 -> throw({odd, N});
raise(N) -> N / 0.

numbers() ->
    lists:foldl(fun(N, Sum) -> (Sum * N) rem 1000000000000000000000007 end, 1, lists:seq(1, 1500)).

spawns() ->
    Self = self(),
    [begin Child = spawn(fun() -> Self ! {self(), N} end), receive {Child, N} -> ok end end || N <- lists:seq(1, 20)],
    ok.

garbage(0) -> ok;
garbage(N) ->
    _ = deep(200),
    garbage(N - 1).

deep(0) -> [];
deep(N) -> [N | deep(N - 1)].
