#!/bin/sh
# Creates the namespace and the search attributes of Autotomy's workflows. The worker would register them too; doing it
# here lets the worker run without an administrator's rights.
set -eu
until temporal operator cluster health >/dev/null 2>&1; do sleep 1; done
temporal operator namespace describe --namespace default >/dev/null 2>&1 \
    || temporal operator namespace create --namespace default --retention 7d
for attribute in InstanceId=Int FtPhase=Keyword RequestId=Keyword DeadRanks=KeywordList ServingPublished=Bool Outcome=Keyword; do
    temporal operator search-attribute create --namespace default --name "${attribute%=*}" --type "${attribute#*=}" \
        || echo "search attribute ${attribute%=*} is there already"
done
